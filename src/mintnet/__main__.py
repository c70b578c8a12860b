"""``python -m mintnet`` is the command line."""

from mintnet.cli import main

if __name__ == "__main__":
    main()
