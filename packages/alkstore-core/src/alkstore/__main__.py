"""``python -m alkstore``."""

from alkstore.cli import main

main()
