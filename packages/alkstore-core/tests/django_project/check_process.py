"""Servers that fork, as gunicorn does: each process opens a store of its own."""

import os
import subprocess
import sys
import textwrap

import pytest
from django.conf import settings

import alkstore.django


@pytest.mark.skipif("URL" in settings.ALKSTORE, reason="what is in memory is in one process")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_each_process_of_a_server_that_forks_opens_its_own_store() -> None:
    code = """
        import os, sys
        import django

        django.setup()

        import alkstore.django
        from django.db import transaction

        store = alkstore.django.store()
        children = []
        for number in range(2):
            child = os.fork()
            if not child:
                with transaction.atomic():
                    alkstore.django.enqueue("forked", number)
                assert alkstore.django.store() is store
                sys.exit(0)
            children.append(child)
        assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]
        with transaction.atomic():
            alkstore.django.enqueue("forked", "parent")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")
    found = alkstore.django.store().queue("forked").list()
    assert sorted(str(job.payload) for job in found) == ["0", "1", "parent"]
