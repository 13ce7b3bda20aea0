"""The documentation as a static site: `make docs`. No part of the package."""
