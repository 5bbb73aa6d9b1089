# SPDX-License-Identifier: Apache-2.0
"""Holds lines of JSON against what an OpenAPI document says of a line: lines.py DOCUMENT METHOD PATH < LINES.

Prints how many lines of each form there were: the number of the alternative that a line is of, or `0` if there is one form alone.
"""

import collections
import json
import sys

import jsonschema_rs


def main():
    document = json.load(open(sys.argv[1]))
    operation = document["paths"][sys.argv[3]][sys.argv[2]]
    line = operation["responses"]["200"]["content"]["application/x-ndjson"]["schema"]
    # An object without a schema would take anything.
    forms = line.get("anyOf", [line])
    if not all(forms):
        sys.exit(f"{sys.argv[3]}: a form of its lines is not described")
    components = document["components"]
    checks = [jsonschema_rs.Draft202012Validator({"components": components, **form}) for form in forms]
    counts = collections.Counter()
    for number, text in enumerate(sys.stdin, 1):
        if not text.strip():
            continue
        value = json.loads(text)
        fit = [at for at, check in enumerate(checks) if check.is_valid(value)]
        if not fit:
            why = "; ".join(next(iter(check.iter_errors(value))).message[:300] for check in checks)
            sys.exit(f"{sys.argv[3]}: line {number}, {text[:300]}: {why}")
        counts[fit[0]] += 1
    print(" ".join(str(counts[at]) for at in range(len(forms))))


main()
