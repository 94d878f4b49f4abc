"""alkstore in a Django project: jobs that land with the ORM's transaction, a worker command, the dead jobs in the admin.

    INSTALLED_APPS = [..., "alkstore.django"]

    with transaction.atomic():
        order = Order.objects.create(...)
        alkstore.django.enqueue("confirmations", {"order": order.pk})

The store is where Django's own data is, unless the setting ``ALKSTORE`` says otherwise.
"""

from alkstore.django.process import close, enqueue, join, store

__all__ = ["close", "enqueue", "join", "store"]
