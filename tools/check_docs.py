"""Check the documents: every relative link points to a file, and every doctest in a code block passes."""

import doctest
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    *sorted((ROOT / "docs").glob("*.md")),
]

FENCED = re.compile(r"^( *)(```+|~~~+)([^\n]*)\n(.*?)^ *\2 *$", re.MULTILINE | re.DOTALL)
INLINE_CODE = re.compile(r"`[^`\n]*`")
LINK = re.compile(
    r"""\]\(<?([^)\s>]+)"""  # [text](target), ![image](target)
    r"""|^ {0,3}\[[^\]]+\]:\s*<?([^\s>]+)"""  # [label]: target
    r"""|\b(?:href|src|srcset)=["']([^"']+)["']""",  # HTML
    re.MULTILINE,
)
ABSOLUTE = re.compile(r"[a-z][a-z0-9+.-]*:|//|#", re.IGNORECASE)


def line_of(text, position):
    return text.count("\n", 0, position) + 1


def blank(match):
    """Blank out code, so that no links are found in it; line numbers stay the same."""
    return re.sub(r"[^\n]", " ", match.group())


def broken_links(document, text):
    prose = INLINE_CODE.sub(blank, FENCED.sub(blank, text))
    for match in LINK.finditer(prose):
        target = next(filter(None, match.groups()))
        path = target.partition("#")[0]
        if not ABSOLUTE.match(target) and not (document.parent / path).exists():
            yield f"{document.relative_to(ROOT)}:{line_of(text, match.start())}: no such file: {path}"


def failed_examples(document, text):
    """Run the examples of one document in order; each block sees the names from earlier ones."""
    names, runner = {"__name__": "__main__"}, doctest.DocTestRunner(verbose=False)
    for block in FENCED.finditer(text):
        line = line_of(text, block.start(4)) - 1
        test = doctest.DocTestParser().get_doctest(block.group(4), names, document.name, str(document), line)
        report = []
        runner.run(test, out=report.append, clear_globs=False)
        names.update(test.globs)
        if report:
            yield f"{document.relative_to(ROOT)}:{line + 1}: an example failed\n{''.join(report)}"


def main():
    failures = []
    for document in DOCUMENTS:
        if not document.exists():
            failures.append(f"{document.relative_to(ROOT)}: is missing")
            continue
        text = document.read_text(encoding="utf-8")
        failures += broken_links(document, text)
        failures += failed_examples(document, text)
    for failure in failures:
        print(failure, file=sys.stderr)
    print(f"{len(DOCUMENTS)} documents checked, {len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
