# SPDX-License-Identifier: Apache-2.0
"""docs/tour.md names what exists and links to where it stands.

python -m tests.meta.test_tour writes the right line numbers into the page.
"""

import ast
import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "tour.md"
LINK = re.compile(r"\[`?([^\]`]+)`?\]\((\.\./[^)#]+)(?:#L(\d+))?\)")


def _definitions(node: ast.AST, inside: str = "") -> list[tuple[str, int]]:
    """List functions, classes and names assigned, as "Class.name", with their lines."""
    found = []
    for child in ast.iter_child_nodes(node):
        name = ""
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            name = f"{inside}.{child.name}".strip(".")
            found.append((name, child.lineno))
        elif isinstance(child, ast.Assign) and isinstance(child.targets[0], ast.Name):
            found.append((f"{inside}.{child.targets[0].id}".strip("."), child.lineno))
        found += _definitions(child, name or inside)
    return found


def _line_of(name: str, path: str) -> int | None:
    """Return the line of what a link names: by its whole name, else by a nested one's end."""
    file = PAGE.parent / path
    if not file.is_file():
        return None
    known = _definitions(ast.parse(file.read_text()))
    name = name.removeprefix(f"{file.stem}.")
    lines = [line for each, line in known if each == name]
    lines += [line for each, line in known if each.endswith(f".{name}")]
    return lines[0] if lines else None


def _judge(text: str) -> tuple[list[str], str]:
    """Return what is wrong with the links of a page, and the page with the right lines."""
    wrong = []

    def right(link: re.Match[str]) -> str:
        name, path, line = link.groups()
        if line is None:
            if not (PAGE.parent / path).exists():
                wrong.append(f"{path} does not exist")
            return link[0]
        found = _line_of(name, path)
        if found is None:
            wrong.append(f"{path} does not define {name}")
            return link[0]
        if found != int(line):
            wrong.append(f"{path}: {name} is at line {found}, not {line}")
        return link[0].replace(f"#L{line})", f"#L{found})")

    return wrong, LINK.sub(right, text)


def test_tour() -> None:
    text = PAGE.read_text()
    wrong, _ = _judge(text)
    assert not wrong, "\n".join([*wrong, "`python -m tests.meta.test_tour` writes the lines anew"])
    assert len(text.splitlines()) <= 120, "a tour of more than 120 lines"
    assert text.count("#L") >= 40, "links that the pattern does not see"
    assert len([link for link in LINK.finditer(text) if link[3]]) == text.count("#L")
    moved = text.replace("#L", "#L9", 1)
    assert len(_judge(moved)[0]) == 1
    assert _judge(moved)[1] == text


def test_the_loop_knows_no_method_by_name() -> None:
    for name in ("step", "loop", "run", "begin", "build"):
        text = (PAGE.parents[1] / "vit_jax" / "train" / f"{name}.py").read_text()
        assert not re.search(r"(?i)lora|flexi|\bsam\b", text), f"{name}.py speaks of one method"


def test_the_path_is_short() -> None:
    path = PAGE.read_text().partition("in this order:")[2].partition("Every other file")[0]
    files = [PAGE.parent / link[2] for link in LINK.finditer(path)]
    assert len({*files}) == len(files) <= 15
    assert files[0].name == "main.py"
    assert sum(len(file.read_text().splitlines()) for file in files) <= 2600


if __name__ == "__main__":
    told, mended = _judge(PAGE.read_text())
    PAGE.write_text(mended)
    print("\n".join(told) or "nothing to mend")
