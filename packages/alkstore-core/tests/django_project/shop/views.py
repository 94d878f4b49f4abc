import json

from django.db import IntegrityError, transaction
from django.http import HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from shop.models import Order

import alkstore.django

__all__ = ["place_order"]


@csrf_exempt
def place_order(request: HttpRequest) -> JsonResponse:
    new = json.loads(request.body)
    try:
        with transaction.atomic():
            order = Order.objects.create(number=new["number"])
            alkstore.django.enqueue("confirmations", {"number": order.number})
            if new.get("twice"):
                Order.objects.create(number=new["number"])
    except IntegrityError:
        return JsonResponse({"error": "there is such an order"}, status=409)
    return JsonResponse({"number": order.number}, status=201)
