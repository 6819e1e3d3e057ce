# SPDX-License-Identifier: Apache-2.0
"""run_checks.py WORK [PART ...]: the parts of tests/readers/run.sh, in one process."""

import importlib
import os
import sys

from transformers.utils import logging

from reader_common import Checks

PARTS = ("models", "schemes", "codes", "served")


def main():
    work = os.path.abspath(sys.argv[1])
    parts = sys.argv[2:] or PARTS
    for part in parts:
        if part not in PARTS:
            sys.exit(f"run_checks: expected one of {', '.join(PARTS)}, found '{part}'")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    checks = Checks()
    for part in parts:
        importlib.import_module(f"check_{part}").run(checks, work)
    return checks.finish()


if __name__ == "__main__":
    sys.exit(main())
