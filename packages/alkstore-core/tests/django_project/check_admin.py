"""The dead jobs in the admin: who sees them, who changes them, and that nothing is changed without a question."""

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.http import HttpResponse
from django.test import Client

import alkstore.django
from alkstore import JobState
from alkstore.django import admin

LIST = "/admin/alkstore/deadjob/"


def bury(queue: str, *payloads: object, error: str = "no <b>luck</b>") -> list[int]:
    target = alkstore.django.store().queue(queue)
    ids = target.enqueue_batch(payloads)
    for handle in target.claim_batch(len(ids)):
        assert handle.fail(error)
    return ids


def dead(queue: str) -> list[int]:
    found = alkstore.django.store().queue(queue).list(state=JobState.DEAD, limit=1_000)
    return [job.id for job in found]


def signed_in(*permissions: str, is_superuser: bool = False, **options: bool) -> Client:
    user = User.objects.create(username="ada", is_staff=True, is_superuser=is_superuser)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    client = Client(**options)
    client.force_login(user)
    return client


def act(client: Client, action: str, **form: object) -> HttpResponse:
    answer: HttpResponse = client.post(f"{LIST}act/", {"action": action, "queue": "mail", **form})
    return answer


def page(client: Client, address: str) -> str:
    answer = client.get(address)
    assert answer.status_code == 200
    text: str = answer.content.decode()
    return text


# ---------------------------------------------------------------- looking


def test_the_index_leads_to_the_queues_that_have_dead_jobs() -> None:
    bury("mail", {"to": "ada"})
    alkstore.django.store().queue("alive").enqueue(1)
    client = signed_in("view_deadjob")

    assert LIST in page(client, "/admin/")
    assert "queue=mail" in page(client, LIST)
    assert "alive" not in page(client, LIST)


def test_a_queues_dead_jobs_are_listed_searched_and_paged() -> None:
    ids = bury("mail", *range(60))
    (other,) = bury("mail", 1, error="timed out")
    client = signed_in("view_deadjob")

    first = page(client, f"{LIST}?queue=mail")
    assert f"{LIST}{ids[49]}/" in first
    assert f"{LIST}{ids[50]}/" not in first
    assert f"after={ids[49]}" in first
    assert f"{LIST}{ids[50]}/" in page(client, f"{LIST}?queue=mail&after={ids[49]}")
    found = page(client, f"{LIST}?queue=mail&error=timed")
    assert f"{LIST}{other}/" in found
    assert f"{LIST}{ids[0]}/" not in found


def test_a_dead_job_is_shown_with_payload_and_error_and_nothing_of_it_is_markup() -> None:
    (id,) = bury("mail", {"to": "<script>alert(1)</script>", "name": "käse"})

    text = page(signed_in("view_deadjob"), f"{LIST}{id}/?queue=mail")

    assert "käse" in text
    assert "no &lt;b&gt;luck&lt;/b&gt;" in text
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(1)" in text


def test_an_outboxs_dead_entries_are_listed_as_its_own() -> None:
    outbox = alkstore.django.store().outbox("partner")
    outbox.enqueue({"order": 7}, max_attempts=1)
    assert outbox.run_once(lambda handle: {}["away"])
    client = signed_in("view_deadjob", "purge_deadjob")

    assert "queue=partner&amp;kind=outbox" in page(client, LIST)
    assert "away" in page(client, f"{LIST}?queue=partner&kind=outbox")
    act(client, "purge", queue="partner", kind="outbox", days=0, confirmed="yes")
    assert outbox.jobs.list() == []


@pytest.mark.parametrize("address", ["999/?queue=mail", "?queue=%20", "1/"])
def test_what_is_not_there_is_not_found(address: str) -> None:
    assert signed_in("view_deadjob").get(LIST + address).status_code == 404


# ---------------------------------------------------------------- changing


def test_chosen_jobs_are_redriven_after_a_question() -> None:
    one, other = bury("mail", 1, 2)
    client = signed_in("view_deadjob", "redrive_deadjob")

    asked = act(client, "redrive", id=[one])
    assert "Are you sure?" in asked.content.decode()
    assert f'name="id" value="{one}"' in asked.content.decode()
    assert dead("mail") == [one, other]
    answer = act(client, "redrive", id=[one], confirmed="yes")

    assert answer.status_code == 302
    assert dead("mail") == [other]
    assert "Made pending again: 1 dead job of queue mail." in page(client, answer.headers["Location"])
    entry = LogEntry.objects.latest("pk")
    assert entry.object_repr == "queue mail"
    assert entry.change_message == f"Made pending again, 1 job: 1 chosen one ({one})"


def test_all_of_a_queue_or_all_with_an_error_are_redriven() -> None:
    bury("mail", *range(3))
    (other,) = bury("mail", 3, error="timed out")
    client = signed_in("redrive_deadjob")

    act(client, "redrive", everything="yes", error="luck", confirmed="yes")
    assert dead("mail") == [other]
    act(client, "redrive", everything="yes", confirmed="yes")
    assert dead("mail") == []


def test_dead_jobs_are_purged_by_their_age_after_a_question() -> None:
    ids = bury("mail", 1, 2)
    client = signed_in("view_deadjob", "purge_deadjob")

    assert "cannot be brought back" in act(client, "purge", days=0).content.decode()
    assert dead("mail") == ids
    act(client, "purge", days=30, confirmed="yes")
    assert dead("mail") == ids
    act(client, "purge", days=0, confirmed="yes")

    assert dead("mail") == []
    assert LogEntry.objects.latest("pk").change_message == "Deleted, 2 jobs: all of them"


@pytest.mark.parametrize("days", ["-1", "nan", "inf", "", "x", "1e400"])
def test_an_age_that_is_none_deletes_nothing(days: str) -> None:
    (id,) = bury("mail", 1)
    client = signed_in("view_deadjob", "purge_deadjob")

    answer = act(client, "purge", days=days, confirmed="yes")

    assert "Nothing was chosen." in page(client, answer.headers["Location"])
    assert dead("mail") == [id]


def test_a_page_after_what_can_be_no_id_is_the_first_one() -> None:
    (id,) = bury("mail", 1)

    assert f"{LIST}{id}/" in page(signed_in("view_deadjob"), f"{LIST}?queue=mail&after={'9' * 5_000}")


def test_more_queues_than_are_counted_are_told_of_and_one_can_be_named() -> None:
    for number in range(admin.PLACES):
        alkstore.django.store().queue(f"a{number:04}").enqueue(1)
    (id,) = bury("mail", 1)
    client = signed_in("view_deadjob")

    listed = page(client, LIST)

    assert "1 more queues and outboxes are not counted here" in listed
    assert "No queue has dead jobs among the first." in listed
    assert f"{LIST}{id}/" in page(client, f"{LIST}?kind=queue&queue=mail")


def test_what_would_turn_a_line_around_is_escaped_and_an_error_says_what_happened() -> None:
    (id,) = bury("mail", "\u202etxt", error="ValueError: no \u202eroute\n  File 'x', line 1\n    raise")
    client = signed_in("view_deadjob")

    listed, shown = page(client, f"{LIST}?queue=mail"), page(client, f"{LIST}{id}/?queue=mail")

    assert "ValueError: no \\u202eroute" in listed
    assert "line 1" not in listed
    assert "\u202e" not in listed + shown


@pytest.mark.parametrize("form", [{}, {"id": "x"}, {"id": "9" * 5_000}])
def test_who_chose_nothing_is_told_so(form: dict[str, str]) -> None:
    (id,) = bury("mail", 1)
    client = signed_in("view_deadjob", "redrive_deadjob")

    assert "Nothing was chosen." in page(client, act(client, "redrive", **form).headers["Location"])
    assert dead("mail") == [id]


# ---------------------------------------------------------------- who may


def test_who_may_look_may_not_change() -> None:
    (id,) = bury("mail", 1)
    client = signed_in("view_deadjob")

    for action in ("redrive", "purge"):
        assert act(client, action, id=id, days=0, confirmed="yes").status_code == 403
    assert dead("mail") == [id]
    assert "act/" not in page(client, f"{LIST}?queue=mail")
    assert "act/" not in page(client, f"{LIST}{id}/?queue=mail")


def test_who_may_not_look_is_refused() -> None:
    (id,) = bury("mail", 1)
    client = signed_in()

    assert client.get(LIST).status_code == 403
    assert client.get(f"{LIST}{id}/?queue=mail").status_code == 403
    assert LIST not in page(client, "/admin/")
    assert Client().get(LIST).status_code == 302  # to sign in


def test_a_superuser_may_do_all_of_it_but_add_and_edit() -> None:
    bury("mail", 1)
    client = signed_in(is_superuser=True)

    assert "act/" in page(client, f"{LIST}?queue=mail")
    assert client.get(f"{LIST}add/").status_code == 404


def test_nothing_is_changed_by_a_link_or_by_another_site() -> None:
    (id,) = bury("mail", 1)
    client = signed_in("redrive_deadjob", enforce_csrf_checks=True)

    assert client.get(f"{LIST}act/", {"action": "redrive", "queue": "mail", "id": id}).status_code == 405
    assert act(client, "redrive", id=id, confirmed="yes").status_code == 403
    assert act(Client(), "redrive", id=id, confirmed="yes").status_code == 302  # to sign in
    assert dead("mail") == [id]
