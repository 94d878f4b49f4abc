"""One-line commands for a machine that has only Python and its package index: ``python3 tools/dev.py tests``.

    demo    run `alkstore demo` (further arguments are passed on)
    tests   run the unit tests, the documentation's code, planted faults, and the contract on every engine
    servers run the contract on every version of PostgreSQL here but the one that the tests start
    soak    run the contract again and again in random order (further arguments are those of tools/soak.py)

It makes its own virtual environment in .dev/venv, from the versions in requirements/constraints.txt, and keeps it while
nothing that it depends on changed. The last line is the verdict, and so is the exit code: 0 green, 1 red, 2 not run.
"""

import sys

if sys.version_info < (3, 11):  # before any import or syntax that an older Python does not know
    sys.stderr.write("alkstore needs Python 3.11 or newer, this is %d.%d\n" % sys.version_info[:2])
    sys.exit(2)

from devtasks import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
