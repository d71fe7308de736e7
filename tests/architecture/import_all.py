"""Imports every module of tauten and prints, as JSON, what each that failed said and which package it missed."""

import importlib
import json
import pkgutil
import sys

import tauten


def main() -> None:
    names = [m.name for m in pkgutil.walk_packages(tauten.__path__, "tauten.") if not m.name.endswith("__main__")]
    failed = {}
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:  # noqa: BLE001  every failure is a finding
            failed[name] = (f"{type(error).__name__}: {error}", getattr(error, "name", None))
    json.dump({"names": names, "failed": failed}, sys.stdout)


if __name__ == "__main__":
    main()
