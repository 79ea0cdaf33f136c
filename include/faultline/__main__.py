"""Entry point of `./faultline`."""

from faultline.cli import main

main()
