from django.db import models

__all__ = ["Missed", "Order"]


class Order(models.Model):
    number = models.BigIntegerField(unique=True)
    confirmed = models.BooleanField(default=False)


class Missed(models.Model):
    """An order that a worker was told of, and did not find."""

    number = models.BigIntegerField()
