"""``python -m alkstore_contract_suite`` is the ``alkstore-contract`` command."""

import sys

from alkstore_contract_suite.cli import main

sys.exit(main())
