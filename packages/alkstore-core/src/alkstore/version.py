"""The two versions: this release's, and that of the contract it fulfils."""

from typing import Final

__all__ = ["CONTRACT_VERSION", "__version__"]

__version__: Final = "0.1.0"
CONTRACT_VERSION: Final = "1.0"
