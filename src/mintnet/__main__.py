"""``python -m mintnet`` is the command line."""

from mintnet_command import main

if __name__ == "__main__":
    main()
