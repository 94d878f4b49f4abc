from django.contrib import admin
from django.urls import path
from shop.views import place_order

__all__ = ["urlpatterns"]

urlpatterns = [path("orders", place_order), path("admin/", admin.site.urls)]
