"""`python -m tensorattn`: the command line."""

from tensorattn.cli import main

if __name__ == "__main__":
    main()
