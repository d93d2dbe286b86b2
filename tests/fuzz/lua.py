"""Run deploy/slurm/job_submit.lua by the Lua library that Slurm's plug-in uses too, where there is one."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "deploy" / "slurm" / "job_submit.lua"
LIBRARIES = ("liblua5.1.so.0", "liblua5.1.so", "liblua5.1-c++.so.0")
_GLOBALS = -10002  # LUA_GLOBALSINDEX of Lua 5.1
_PRELUDE = """
slurm = {SUCCESS = 0, ERROR = -1, NO_VAL = 4294967294, INFINITE = 4294967295, log_info = function() end}
os.time = function() return NOW end
"""
_SUBMIT = """
helios_hook.table_path = TABLE
local job = {user_id = 1, user_name = "ann", partition = "gpu", tres_per_job = "gres:gpu:2", time_limit = 60,
    min_nodes = 1, num_tasks = 1, site_factor = slurm.NO_VAL, time_min = slurm.NO_VAL, priority = slurm.NO_VAL,
    het_job_offset = slurm.NO_VAL}
local answer = slurm_job_submit(job, {gpu = {flag_default = 1, max_time = 60}}, 0)
local function told(value) return value == slurm.NO_VAL and "none" or string.format("%.0f", value) end
ANSWER = answer .. " " .. told(job.site_factor) .. " " .. told(job.time_min)
"""


@cache
def library() -> ctypes.CDLL | None:
    """Return the Lua 5.1 library; None: there is none."""
    for name in LIBRARIES:
        try:
            lua = ctypes.CDLL(name)
        except OSError:
            continue
        lua.luaL_newstate.restype = ctypes.c_void_p
        for function in ("luaL_openlibs", "lua_close"):
            getattr(lua, function).argtypes = [ctypes.c_void_p]
        lua.luaL_loadstring.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
        lua.lua_pcall.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_int]
        lua.lua_getfield.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p]
        lua.lua_tolstring.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
        lua.lua_tolstring.restype = ctypes.c_char_p
        return lua
    return None


def submitted(table: Path, *, now_s: int) -> tuple[int | None, int | None]:
    """Return SiteFactor and TimeMin that the script gives a job of ann's; None: it leaves it as it was."""
    lua = library()
    if lua is None:
        raise RuntimeError("no Lua library")
    state = lua.luaL_newstate()
    try:
        lua.luaL_openlibs(state)
        _run(lua, state, f"NOW = {now_s}; TABLE = {str(table)!r}".encode())
        for text in (_PRELUDE.encode(), SCRIPT.read_bytes(), _SUBMIT.encode()):
            _run(lua, state, text)
        lua.lua_getfield(state, _GLOBALS, b"ANSWER")
        answer, site, minutes = lua.lua_tolstring(state, -1, None).decode().split()
        if answer != "0":
            raise AssertionError(f"the hook answered {answer}: the job would be refused")
        return tuple(None if word == "none" else int(word) for word in (site, minutes))  # type: ignore[return-value]  # two
    finally:
        lua.lua_close(state)


def _run(lua: ctypes.CDLL, state: int, text: bytes) -> None:
    if lua.luaL_loadstring(state, text) or lua.lua_pcall(state, 0, -1, 0):
        raise AssertionError((lua.lua_tolstring(state, -1, None) or b"?").decode("latin-1"))
