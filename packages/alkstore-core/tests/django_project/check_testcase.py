"""Django's own test cases, which roll back what a test did."""

from django.db import transaction
from django.test import TestCase, override_settings
from shop.models import Order

import alkstore.django
from alkstore.sync.testing import assert_enqueued


@override_settings(ALKSTORE={"URL": "mem://"})
class Orders(TestCase):
    databases = ("default",)

    def setUp(self) -> None:
        alkstore.django.close()  # and with it what others left in memory

    def tearDown(self) -> None:
        alkstore.django.close()

    def test_what_a_view_enqueued_is_there_once_its_callbacks_were_run(self) -> None:
        with self.captureOnCommitCallbacks(execute=True):
            self.client.post("/orders", {"number": 7}, content_type="application/json")

        assert_enqueued(alkstore.django.store().queue("confirmations"), {"number": 7})
        assert Order.objects.get().number == 7

    def test_what_was_rolled_back_is_not(self) -> None:
        with self.captureOnCommitCallbacks(execute=True):
            answer = self.client.post(
                "/orders", {"number": 8, "twice": True}, content_type="application/json"
            )

        assert answer.status_code == 409
        assert alkstore.django.store().queues() == []

    def test_a_second_callback_lands_what_came_after_the_first(self) -> None:
        for number in (1, 2):
            with self.captureOnCommitCallbacks(execute=True), transaction.atomic():
                alkstore.django.enqueue("confirmations", {"number": number})

        found = alkstore.django.store().queue("confirmations").list()
        assert [job.payload["number"] for job in found] == [1, 2]
