from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as dist

from trainbook.errors import UserError
from trainbook.parallel import RankEnv, find_rank_env
from trainbook.parallel.ranks import DEFAULT_PORT, SIDE_GROUP_LIMIT, Ranks, first_host

SLURM = {
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
    "SLURM_STEP_NODELIST": "gpu[07-08]",
    "SLURM_JOB_NODELIST": "gpu[05-09]",
    "SLURM_JOB_ID": "1230042",
}
TORCHRUN = {"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "gpu07"}


def without(environment: dict[str, str], *names: str) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name not in names}


def test_nothing_said_is_one_process_alone():
    assert find_rank_env({}) == RankEnv(rank=0, local_rank=0, world=1, local_world=1)


def test_the_environment_of_this_process_is_asked(monkeypatch: pytest.MonkeyPatch):
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    assert find_rank_env().rank == 5


def test_torchrun_says_it_all_and_where_the_ranks_meet_is_left_to_torch():
    assert find_rank_env(TORCHRUN) == RankEnv(rank=5, local_rank=1, world=8, local_world=4, address=None, port=None)


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE"])
def test_a_rank_without_a_world_and_a_world_without_a_rank_say_nothing(name: str):
    assert find_rank_env(without(TORCHRUN, name)) == RankEnv()


def test_pods_of_one_process_each_need_not_say_which_it_is_there():
    """As Kubeflow's PyTorchJob starts them."""
    place = find_rank_env({"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456"})
    assert place == RankEnv(rank=3, local_rank=0, world=4, local_world=1)


def test_torchrun_within_a_slurm_job_counts_and_not_the_tasks_that_started_it():
    assert find_rank_env({**SLURM, **TORCHRUN, "RANK": "6"}) == RankEnv(rank=6, local_rank=1, world=8, local_world=4)


def test_tasks_of_slurm_meet_at_the_first_host_of_their_step():
    place = find_rank_env(SLURM)
    assert place == RankEnv(rank=5, local_rank=1, world=8, local_world=4, address="gpu07", port=DEFAULT_PORT + 42)
    assert find_rank_env(without(SLURM, "SLURM_STEP_NODELIST")).address == "gpu05"
    assert find_rank_env(without(SLURM, "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST")).address == "localhost"


def test_jobs_of_slurm_that_share_a_machine_meet_at_other_ports():
    other = find_rank_env({**SLURM, "SLURM_JOB_ID": "1230043"})
    assert other.port == DEFAULT_PORT + 43
    assert find_rank_env(without(SLURM, "SLURM_JOB_ID")).port == DEFAULT_PORT
    assert (find_rank_env({**SLURM, "SLURM_JOB_ID": "39999"}).port or 0) < 2**16


@pytest.mark.parametrize(("told", "here"), [("4(x2)", 4), ("6,2", 6), ("8", 8), ("", 8)])
def test_tasks_that_share_a_machine_are_counted_on_the_first_one(told: str, here: int):
    """Where nothing is said all may be on one: what they may take of its memory is not overrated."""
    assert find_rank_env({**SLURM, "SLURM_STEP_TASKS_PER_NODE": told}).local_world == here


@pytest.mark.parametrize("tasks", [{"SLURM_STEP_NUM_TASKS": "1"}, {}])
def test_one_task_of_slurm_is_no_world(tasks: dict[str, str]):
    """Such as an interactive shell, whose job may have asked for more."""
    alone = {**without(SLURM, "SLURM_STEP_NUM_TASKS"), "SLURM_PROCID": "0", "SLURM_NTASKS": "8", **tasks}
    assert find_rank_env(alone) == RankEnv()


def test_what_only_describes_a_job_of_slurm_is_no_place():
    """As in the batch script itself, which is no task of a step."""
    assert find_rank_env(without(SLURM, "SLURM_PROCID")) == RankEnv()


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("gpu07", "gpu07"),
        ("gpu07,gpu08", "gpu07"),
        ("gpu[07-09,12],login1", "gpu07"),
        ("gpu[12,07-09]", "gpu12"),
        ("gpu-[3]", "gpu-3"),
        ("gpu[1-2].example.org,gpu9", "gpu1.example.org"),
        ("a-1,b[2-3]", "a-1"),
        ("rack[1-2]node[03-04]", "rack1node03"),
        ("rack[1,2]-node[03,05].cluster,other", "rack1-node03.cluster"),
        (" gpu1 ", "gpu1"),
        ("", "localhost"),
    ],
)
def test_the_first_host_of_a_node_list(nodes: str, first: str):
    assert first_host(nodes) == first


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({**TORCHRUN, "RANK": "x"}, "the environment variable RANK must be a whole number >= 0, but got 'x'."),
        ({**TORCHRUN, "RANK": "-1"}, "the environment variable RANK must be a whole number >= 0, but got '-1'."),
        (
            {**TORCHRUN, "WORLD_SIZE": ""},
            "the environment variable WORLD_SIZE must be a whole number >= 0, but got ''.",
        ),
        (
            {**TORCHRUN, "WORLD_SIZE": "2.0"},
            "the environment variable WORLD_SIZE must be a whole number >= 0, but got '2.0'.",
        ),
        (
            {**TORCHRUN, "LOCAL_RANK": "a"},
            "the environment variable LOCAL_RANK must be a whole number >= 0, but got 'a'.",
        ),
        (
            {**TORCHRUN, "LOCAL_WORLD_SIZE": "a"},
            "the environment variable LOCAL_WORLD_SIZE must be a whole number >= 0, but got 'a'.",
        ),
        ({**TORCHRUN, "RANK": "8"}, "the environment variable RANK must be < WORLD_SIZE, but got 8 of 8."),
        (
            {**TORCHRUN, "RANK": "0", "WORLD_SIZE": "0"},
            "the environment variable RANK must be < WORLD_SIZE, but got 0 of 0.",
        ),
        (
            {**SLURM, "SLURM_STEP_NUM_TASKS": "many"},
            "the environment variable SLURM_STEP_NUM_TASKS must be a whole number >= 0, but got 'many'.",
        ),
        (
            {**SLURM, "SLURM_PROCID": "?"},
            "the environment variable SLURM_PROCID must be a whole number >= 0, but got '?'.",
        ),
        (
            without(SLURM, "SLURM_LOCALID"),
            "the environment variable SLURM_LOCALID must be a whole number >= 0, but got ''.",
        ),
        (
            {**SLURM, "SLURM_JOB_ID": "7_1"},
            "the environment variable SLURM_JOB_ID must be a whole number >= 0, but got '7_1'.",
        ),
        (
            {**SLURM, "SLURM_PROCID": "9"},
            "the environment variable SLURM_PROCID must be < SLURM_STEP_NUM_TASKS, but got 9 of 8.",
        ),
    ],
)
def test_what_cannot_be_a_place_is_told_with_its_name(environment: dict[str, str], message: str):
    with pytest.raises(UserError) as told:
        find_rank_env(environment)
    assert str(told.value) == message


@pytest.mark.parametrize("limit", [timedelta(seconds=30), 2 * SIDE_GROUP_LIMIT])
def test_who_writes_a_checkpoint_is_given_as_long_as_who_computes_or_longer(
    limit: timedelta, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}
    monkeypatch.setattr(dist, "new_group", lambda **given: asked.update(given))
    assert Ranks(RankEnv(rank=0, world=2), limit=limit).side_group.world == 2
    assert asked["timeout"] == max(limit, SIDE_GROUP_LIMIT)
