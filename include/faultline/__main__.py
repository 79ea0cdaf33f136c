"""Entry point of `./faultline`."""

from faultline.cli.main import main

main()
