from __future__ import annotations

import contextlib
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.errors import TaskError
from muster.sandbox.dockerfile.options import absolute
from muster.sandbox.dockerfile.parsing import parse
from muster.sandbox.dockerfile.recipe import Stages
from muster.sandbox.dockerfile.startup import Startup
from muster.sandbox.dockerfile.steps import Copy, Document, MakeDirectory, Recipe, Run, RunMount
from muster.types import HealthCheck

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def recipe(body: str, base: Startup | None = None, **build_args: str) -> Recipe:
    return Stages(parse(f"FROM x\n{body}"), build_args).recipe(0, base or Startup())


def run(body: str) -> Run:
    step = recipe(body).steps[-1]
    assert isinstance(step, Run)
    return step


def copy(body: str) -> Copy:
    step = recipe(body).steps[-1]
    assert isinstance(step, Copy)
    return step


def test_env_and_arguments_are_replaced_where_docker_does() -> None:
    body = (
        'ARG NAME=world\nENV GREETING="hello $NAME" PLAIN=x\\ y\nENV OLD the old form\nWORKDIR /app\nWORKDIR ${NAME}\n'
        "COPY a.sh b/ ${NAME:-x}/\nRUN echo $NAME\n"
    )
    found = recipe(body)
    env = {"GREETING": "hello world", "PLAIN": "x y", "OLD": "the old form"}
    assert found.steps[:3] == (
        MakeDirectory(path="/app"),
        MakeDirectory(path="/app/world"),
        Copy(line=7, name="COPY", sources=("a.sh", "b/"), target="/app/world/world/"),
    )
    assert found.steps[3] == Run(
        line=8,
        text="echo $NAME",
        command="/bin/sh -c 'echo $NAME'",
        env={"NAME": "world", **env},
        workdir="/app/world",
    )
    assert found.startup == Startup(env=env, workdir="/app/world")


def test_the_base_gives_what_the_stage_does_not_set() -> None:
    base = Startup(env={"A": "1", "PATH": "/x"}, workdir="/w", user="u", entrypoint=("e",), command=("c",))
    assert recipe("ENV B=$A$PATH\n", base).startup.env == {"A": "1", "PATH": "/x", "B": "1/x"}
    assert recipe("CMD d\n", base).startup.entrypoint == ("e",)
    assert recipe("ENTRYPOINT f\n", base).startup.command == ()  # the base's words were for the base's entrypoint
    assert recipe('CMD ["d"]\nENTRYPOINT f\n', base).startup.command == ("d",)


def test_a_path_is_always_there_to_be_extended() -> None:
    assert recipe("ENV PATH=/opt/bin:$PATH\n").startup.env["PATH"] == f"/opt/bin:{PATH}"


def test_one_env_instruction_sees_the_values_before_it() -> None:
    assert recipe("ENV A=1\nENV A=2 B=$A\n").startup.env == {"A": "2", "B": "1"}


def test_build_arguments_win_over_defaults_and_env_over_both() -> None:
    assert recipe("ARG A=1 B\nENV C=$A$B\n", A="2", B="3").startup.env == {"C": "23"}
    assert recipe("ARG A=1\nENV A=5\nENV C=$A\n", A="2").startup.env["C"] == "5"


def test_arguments_before_from_reach_a_stage_that_names_them() -> None:
    stages = Stages(parse("ARG V=9\nARG W=$V\nFROM img:$W\nENV A=$V\nARG V\nENV B=$V\n"))
    assert stages.base(0) == "img:9"
    assert stages.recipe(0, Startup()).startup.env == {"A": "", "B": "9"}


def test_stages_are_named_or_numbered() -> None:
    stages = Stages(parse("FROM a AS one\nFROM one\nCOPY --from=One x y\nCOPY --from=0 x y\nCOPY --from=img:1 x y\n"))
    assert stages.base(1) == 0
    origins = [step.origin for step in stages.recipe(1, Startup()).steps if isinstance(step, Copy)]
    assert origins == [0, 0, "img:1"]
    assert (stages.target(None), stages.target("one")) == (1, 0)
    with pytest.raises(TaskError, match=r"no stage 'two' to build; its named stages: one"):
        stages.target("two")


def test_a_stage_cannot_copy_from_a_later_one() -> None:
    for name in ("two", "1", "7"):
        with pytest.raises(TaskError, match=f":2: COPY: --from={name} is not a stage before this one"):
            Stages(parse(f"FROM a\nCOPY --from={name} x y\nFROM b AS two\n")).recipe(0, Startup())


def test_shells_arrays_and_here_documents_each_run_their_way() -> None:
    assert run('RUN ["ls", "a b"]\n').command == "( exec ls 'a b' )"
    assert run('SHELL ["/bin/bash", "-ec"]\nRUN a | b\n').command == "/bin/bash -ec 'a | b'"
    assert run("RUN <<E\na\nb\nE\n").command == shlex.join(["/bin/sh", "-c", "a\nb\n"])
    assert run("RUN python3 <<E\nprint()\nE\n").command == shlex.join(["/bin/sh", "-c", "python3 <<E\nprint()\nE"])
    assert "#!/usr/bin/python3" in run("RUN <<E\n#!/usr/bin/python3\nprint()\nE\n").command


def test_run_options() -> None:
    step = run("RUN --network=none --mount=type=cache,target=pip,id=p --mount=from=img,source=/a,target=/b x\n")
    assert not step.network
    assert step.mounts == (
        RunMount(kind="cache", target="/pip", identity="p"),
        RunMount(kind="bind", target="/b", identity="/b", origin="img", source="/a", writable=False),
    )


def test_copy_options_and_documents() -> None:
    step = copy(
        "ENV W=you\nCOPY --chown=a:b --chmod=0750 --exclude=*.c --parents --link a <<f <<'g' /x/\n$W\nf\n$W\ng\n"
    )
    assert step == Copy(
        line=3,
        name="COPY",
        sources=("a",),
        target="/x/",
        documents=(Document(name="f", content="you\n"), Document(name="g", content="$W\n")),
        owner="a:b",
        mode=0o750,
        exclude=("*.c",),
        parents=True,
    )
    assert copy('COPY ["with space", "/x"]\n').sources == ("with space",)
    assert copy("ADD a.tar /x\n").extract


def test_health_checks() -> None:
    def health(text: str) -> HealthCheck | None:
        return recipe(f"HEALTHCHECK {text}\n").startup.health

    assert health("CMD curl x") == HealthCheck(command="curl x", interval_s=30.0)
    assert health('--interval=1m30s --timeout=500ms --start-period=2s --retries=5 CMD ["a", "b c"]') == HealthCheck(
        command="a 'b c'", interval_s=90.0, timeout_s=0.5, start_period_s=2.0, retries=5
    )
    assert recipe("HEALTHCHECK NONE\n", Startup(health=HealthCheck(command="x"))).startup.health is None


def test_what_does_not_matter_to_a_sandbox_is_ignored() -> None:
    assert recipe("LABEL a=b\nEXPOSE 80\nVOLUME /x\nSTOPSIGNAL 9\nMAINTAINER me\n") == Recipe()


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("ONBUILD RUN x", "ONBUILD: not supported"),
        ("ADD https://x.org/a /a", r"ADD: https://x.org/a: URLs are not fetched; use RUN curl"),
        ("ADD git@x.org:a.git /a", "ADD: git@x.org:a.git: URLs are not fetched"),
        ("COPY a", "COPY: needs at least one source and a target"),
        ("COPY a b c", "COPY: several sources need a target that ends with /"),
        ("COPY --chmod=u+x a b", "COPY: --chmod=u.x: give the mode as an octal number"),
        ("COPY --checksum=x a b", "COPY: --checksum is not supported"),
        ("ADD --from=x a b", "ADD: --from is not supported"),
        ("RUN --mount=type=secret,id=x y", "RUN: --mount=type=secret is refused"),
        ("RUN --mount=type=cache y", "RUN: --mount=type=cache: needs"),
        ("RUN --network=host y", "RUN: --network=host is not supported"),
        ("RUN --security=insecure y", "RUN: --security=insecure is not supported"),
        ("RUN", "RUN: has no value"),
        ("ENV", "ENV: has no value"),
        ("ENV $NONE=1", "ENV: .* is not KEY=value"),
        ("ENV A=1 B", "ENV: 'B' is not KEY=value"),
        ("ENV A='x", "ENV: the quote ' does not end"),
        ("WORKDIR ${A:?set it}", "WORKDIR: A: set it"),
        ("SHELL bash", "SHELL: write it as an array"),
        ("HEALTHCHECK curl x", "HEALTHCHECK: write"),
        ("HEALTHCHECK --interval=soon CMD x", "HEALTHCHECK: 'soon' is no duration"),
    ],
)
def test_what_is_wrong_names_line_and_instruction(body: str, says: str) -> None:
    with pytest.raises(TaskError, match=f"Dockerfile:2: {says}"):
        recipe(body + "\n")


def test_paths_stay_below_the_root() -> None:
    assert absolute("/app", "../../../etc/./x") == "/etc/x"
    assert absolute("/app", ".") == "/app/"
    assert absolute("/app", "a/") == "/app/a/"
    assert absolute("/", "/") == "/"


LINES = st.lists(
    st.sampled_from(
        [
            "FROM a AS b",
            "FROM $X",
            "FROM scratch",
            "ARG A=1",
            "ENV B=$A",
            "ENV C",
            "WORKDIR x",
            "COPY a b",
            "RUN x",
            "CMD",
        ]
    ),
    max_size=8,
)


@given(LINES, st.text(alphabet=st.sampled_from("\"'${}=:-<#[],x/` "), max_size=20))
def test_any_dockerfile_is_cooked_or_is_a_task_error(lines: list[str], tail: str) -> None:
    with contextlib.suppress(TaskError):
        stages = Stages(parse("\n".join([*lines, f"RUN{tail}", f"ENV A={tail}", f"COPY {tail} /"])))
        for number in range(len(stages.dockerfile.stages)):
            stages.base(number)
            stages.recipe(number, Startup())
