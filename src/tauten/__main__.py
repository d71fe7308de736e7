"""`python -m tauten` is the command `tauten`."""

from tauten.cli.main import entry

if __name__ == "__main__":
    entry()
