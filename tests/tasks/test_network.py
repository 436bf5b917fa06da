import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.errors import TaskError
from muster.tasks.harbor import load_task
from muster.tasks.network import host_problem, normal
from tasks.task_directory import write_task


def allowed(root, toml: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Hosts that the agent and the verifier may reach."""
    task = load_task(write_task(root, toml=toml))
    return task.limits.egress, task.verifier.egress


HOSTS = 'network_mode = "allowlist"\nallowed_hosts = ["Example.org.", "*.example.com", "192.0.2.1"]\n'
NAMED = ("example.org", "*.example.com", "192.0.2.1")


@pytest.mark.parametrize(
    ("toml", "agent", "verifier"),
    [
        ("", (), ()),
        ('[environment]\nnetwork_mode = "no-network"\n', (), ()),
        ('[environment]\nnetwork_mode = "public"\n', ("*",), ("*",)),
        ("[environment]\nallow_internet = true\n", ("*",), ("*",)),
        ("[environment]\nallow_internet = false\n", (), ()),
        (f"[environment]\n{HOSTS}", NAMED, NAMED),
        ('[environment]\nnetwork_mode = "public"\n[verifier]\nnetwork_mode = "no-network"\n', ("*",), ()),
        (f'[environment]\nnetwork_mode = "public"\n[agent]\n{HOSTS}', NAMED, ("*",)),
        ('[verifier]\nnetwork_mode = "public"\n', (), ("*",)),
        ('[environment]\nnetwork_mode = "allowlist"\n', (), ()),
    ],
)
def test_a_phase_reaches_what_the_nearest_table_allows_and_else_nothing(tmp_path, toml, agent, verifier):
    assert allowed(tmp_path, toml) == (agent, verifier)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('network_mode = "open"', "environment.network_mode: expected 'public', 'no-network' or 'allowlist'"),
        ('allowed_hosts = ["a.org"]', "environment.allowed_hosts: is for network_mode = 'allowlist' alone"),
        ('network_mode = "allowlist"\nallowed_hosts = ["https://a.org/x"]', "expected a host name"),
        ('network_mode = "allowlist"\nallowed_hosts = ["a.org:443"]', "expected a host name"),
        ('network_mode = "allowlist"\nallowed_hosts = ["*"]', "write network_mode = 'public' for any host"),
        ('network_mode = "allowlist"\nallowed_hosts = ["10.0.0.0/8"]', "address ranges are not supported yet"),
        ('network_mode = "allowlist"\nallowed_hosts = ["*.10.0.0.1"]', "expected a host name"),
    ],
)
def test_a_wrong_network_names_the_key_and_the_fix(tmp_path, line, expected):
    with pytest.raises(TaskError) as caught:
        load_task(write_task(tmp_path, toml=f"[environment]\n{line}\n"))
    assert expected in str(caught.value)


labels = st.text(string.ascii_letters + string.digits, min_size=1, max_size=8)


@given(st.lists(labels, min_size=2, max_size=4), st.booleans(), st.booleans())
def test_every_plain_name_is_a_host_however_it_is_written(parts, wildcard, dot):
    name = ".".join(["x", *parts])
    host = f"{'*.' if wildcard else ''}{name}{'.' if dot else ''}"
    assert host_problem(host) is None
    assert normal(host) == normal(normal(host))


@given(st.text(max_size=8), st.sampled_from(" :/@$;%\n"), st.text(max_size=8))
def test_nothing_with_shell_or_url_characters_is_a_host_name(before, odd, after):
    host = before + odd + after
    if host_problem(host) is None:
        assert all(c in "0123456789abcdef:.-*" for c in normal(host)) or odd in " \n", "an address, or trimmed"
