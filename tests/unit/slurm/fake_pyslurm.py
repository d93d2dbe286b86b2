"""The source of a package that behaves as pyslurm 25.11.2 does, quirks included, for the worker to import."""

PYSLURM = '''
"""Behaves as pyslurm 25.11.2 does, on the cluster that the file PYSLURM_STATE describes."""

import json, os, sys
from pathlib import Path

__version__ = "25.11.2"
STATE = Path(os.environ["PYSLURM_STATE"])
os.write(1, b"libslurm talks to standard output\\n")
if "fatal" in json.loads(STATE.read_text()):
    print("fatal: Could not establish a configuration source", file=sys.stderr, flush=True)
    os._exit(1)


def state():
    found = json.loads(STATE.read_text())
    if "error" in found:
        raise RPCError(found["error"], "Slurm says no")
    return found


class RPCError(Exception):
    def __init__(self, errno, msg):
        super().__init__(msg)
        self.errno = errno


class Thing:
    def __init__(self, given):
        self.__dict__.update(given)


class Tres:
    def __init__(self, given):
        self.mem = Thing({"count": given["mem"]}) if "mem" in given else None
        self.gres = {name: Thing({"count": count}) for name, count in given.get("gres", {}).items()}


class Job:
    def __init__(self, job_id):
        self.id = job_id

    @classmethod
    def of(cls, given):
        job = cls(given["id"])
        for key, value in given.items():
            if key != "name":
                setattr(job, key, Tres(value) if key.startswith("tres") and value is not None else value)
        job.raw_name = bytes.fromhex(given["name"])
        return job

    @property
    def name(self):
        return self.raw_name.decode()

    def modify(self, changes):
        found = state()
        if self.id not in [job["id"] for job in found["jobs"]]:
            raise RPCError(2017, "Invalid job id specified")
        with open(str(STATE) + ".written", "a") as log:
            log.write(json.dumps([self.id, changes.ptr()]) + "\\n")


class JobSubmitDescription:
    def __init__(self, site_factor=None, time_limit_min=None):
        self.site_factor, self.time_limit_min = site_factor, time_limit_min

    def ptr(self):
        sent = {}
        if self.site_factor:
            sent["site_factor"] = int(self.site_factor)
        if self.time_limit_min is not None:
            sent["time_min"] = self.time_limit_min + 0
        return sent


class Jobs:
    @staticmethod
    def load(preload_passwd_info):
        return {job["id"]: Job.of(job) for job in state()["jobs"]}


class Node:
    def __init__(self, name=None, state=None, weight=None):
        self.given = {"name": name, "state": state, "weight": weight}

    def modify(self, changes):
        name = self.given["name"]
        if "nope" in name:
            state()
            raise RPCError(2018, "Invalid node name specified")
        state()
        sent = {key: value for key, value in changes.given.items() if value and key != "name"}
        if "weight" in sent:
            sent["weight"] = int(sent["weight"])
        with open(str(STATE) + ".written", "a") as log:
            log.write(json.dumps([name, sent]) + "\\n")


class Nodes:
    @staticmethod
    def load():
        return {node["name"]: Thing(node) for node in state()["nodes"]}


class slurmctld:
    class Config:
        @staticmethod
        def load():
            return Config(state().get("config", {}))


class Config(Thing):
    version = "25.11.4"

    def __getattr__(self, name):
        return None
'''
