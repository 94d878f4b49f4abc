"""``python -m alkstore.cli``."""

from alkstore.cli import main

main()
