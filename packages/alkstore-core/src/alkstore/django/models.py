"""What the admin lists: no table of its own, since the jobs are the store's."""

from typing import Any

from django.db import models

__all__ = ["DeadJob"]


class _Nothing(models.Manager):
    """Finds nothing: whoever goes through all models, as ``dumpdata`` does, is not to ask for a table."""

    def get_queryset(self) -> Any:
        return super().get_queryset().none()


class DeadJob(models.Model):
    """A job that will not be tried again. It stands here for the admin's index and for its permissions."""

    id = models.BigIntegerField(primary_key=True)

    objects = _Nothing()

    class Meta:
        """No table, and permissions for what can be done."""

        managed = False
        default_permissions = ("view",)
        permissions = (
            ("redrive_deadjob", "Can redrive dead jobs"),
            ("purge_deadjob", "Can delete dead jobs for ever"),
        )
        verbose_name = "dead job"
