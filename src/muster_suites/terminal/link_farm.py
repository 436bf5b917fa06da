"""Install packages by symbolic links: an order of precedence, files in the way, links that lead nowhere."""

from __future__ import annotations

from typing import Any

from muster_suites.frame import DOCKERFILE, Draw, Family, Instance
from muster_suites.judging import judged_by, tree


def _link_farm(draw: Draw) -> Instance:
    level = draw.difficulty
    packages = draw.words(draw.at(1, 2, 3, 4, 5))
    folders = draw.at(("bin",), ("bin",), ("bin", "lib"), ("bin", "lib"), ("bin", "lib", "man/one"))
    shared = [f"{draw.choice(folders)}/{draw.word()}" for _ in range(draw.at(0, 0, 2, 3, 4))]
    owned = {
        package: sorted(
            {*(f"{draw.choice(folders)}/{draw.word()}" for _ in range(draw.at(2, 2, 3, 3, 4))), *shared[i::2]}
        )
        for i, package in enumerate(packages)
    }
    order = draw.shuffled(packages)
    wanted: dict[str, str] = {}
    for package in order:
        for path in owned[package]:
            wanted.setdefault(path, package)
    real = {draw.choice(sorted(wanted)): "own file\n"} if level >= 4 else {}
    stale = [f"bin/{draw.word()}" for _ in range(2)] if level == 5 else []
    expected: dict[str, Any] = {
        path: {"type": "link", "target": f"{'../' * (path.count('/') + 1)}packages/{package}/{path}"}
        for path, package in wanted.items()
    } | real
    checks = [
        tree("/app/local", expected),
        tree("/app/packages", {f"{p}/{f}": f"{p} {f}\n" for p in packages for f in owned[p]}),
    ]
    if level >= 4:
        checks.append({"check": "lines", "path": "/app/conflicts.txt", "lines": sorted(real), "ordered": False})
    files = {f"files/packages/{p}/{path}": f"{p} {path}\n" for p in packages for path in owned[p]}
    files |= {f"files/local/{path}": text for path, text in real.items()}
    if level >= 3:
        files["files/order.txt"] = "".join(f"{package}\n" for package in order)
    broken = "".join(f" && ln -s ../../packages/gone/{path} local/{path}" for path in stale)
    return Instance(
        instruction=_instruction(level),
        files=files,
        dockerfile=DOCKERFILE + (f"RUN mkdir -p local/bin{broken}\n" if broken else ""),
        tests=judged_by(*checks),
        solution=f"ORDER='{' '.join(order)}'\n{_SOLVE_LINKS}" + ("" if level >= 4 else "rm conflicts.txt\n"),
        max_turns=draw.at(4, 6, 8, 12, 16),
    )


def _instruction(level: int) -> str:
    wishes = [
        "Install the packages of /app/packages into /app/local: for each file /app/packages/NAME/PATH make the "
        "symbolic link /app/local/PATH to it. Link targets are relative, such as ../../packages/NAME/PATH; "
        "directories are made, not linked."
    ]
    if level >= 3:
        wishes.append("/app/order.txt lists the packages; where two have the same PATH, the one listed first wins.")
    if level >= 4:
        wishes.append(
            "Files that already are in /app/local stay as they are. Write the paths, relative to /app/local, at which "
            "one is in the way of a link to /app/conflicts.txt, one in each line."
        )
    if level == 5:
        wishes.append("Remove links in /app/local that lead nowhere.")
    return "\n".join(wishes)


_SOLVE_LINKS = """\
mkdir -p local
find local -xtype l -delete
: > conflicts.txt
for package in $ORDER; do
    (cd "packages/$package" && find . -type f -printf '%P\\n') | while read -r path; do
        up=$(echo "$path" | sed 's|[^/]*/|../|g; s|[^/]*$||')
        mkdir -p "local/$(dirname "$path")"
        if [ -L "local/$path" ]; then continue; fi
        if [ -e "local/$path" ]; then echo "$path" >> conflicts.txt; continue; fi
        ln -s "$up../packages/$package/$path" "local/$path"
    done
done
sort -u -o conflicts.txt conflicts.txt
"""


FAMILY = Family(
    name="link-farm",
    suite="terminal",
    make=_link_farm,
    levels=(
        "one package of two files",
        "two packages",
        "packages that share paths, in an order",
        "files in the way",
        "links that lead nowhere, deeper paths",
    ),
)
