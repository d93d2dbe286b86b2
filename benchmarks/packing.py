"""Packing of trials on measured speeds, beside exclusive devices, fixed sharing and an oracle."""

from __future__ import annotations

import argparse
import re
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from helios.model.pools import Device, PoolAction, PoolSnapshot
from helios.services.packing import Packing, PackingOptions
from helios.simulate.pools import PairProfiles, PoolCosts, PoolOutcome, SimulatedPool, SimulatedTrial, read_pair_profiles, share_fixed, knowing

GAVEL = Path("../../shared/profiles/gavel/throughputs.csv")
MEMORY = {"k80": 12_288.0, "p100": 16_384.0, "v100": 16_384.0}


def parameters(family: str) -> dict[str, object]:
    m = re.fullmatch(r"(.*) \(batch size (\d+)\)", family)
    return {"model": m[1], "batch_size": int(m[2])} if m else {"model": family}


def draw(profiles, mix, seed, *, over_time=False, trials=64, devices=4):
    rng = np.random.default_rng((seed, {"shape": 0, "one": 1, "several": 2}[mix]))
    models = sorted({parameters(f)["model"] for f in profiles.families})
    if mix == "shape":
        pool = [rng.integers(len(profiles.families))]
    elif mix == "one":
        m = models[rng.integers(len(models))]
        pool = [i for i, f in enumerate(profiles.families) if parameters(f)["model"] == m]
    else:
        pool = list(range(len(profiles.families)))
    fam = rng.choice(pool, trials)
    secs = np.exp(rng.normal(np.log(1200), 0.5, trials))
    span = 0.6 * secs.sum() / devices if over_time else 0.0
    arr = np.sort(rng.uniform(0, span, trials))
    return [SimulatedTrial(family=int(f), seconds=float(s), memory_mib=1000.0, arrives_s=float(a), parameters=parameters(profiles.families[f])) for f, s, a in zip(fam, secs, arr)]


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--gpus", default="k80,p100,v100")
    ap.add_argument("--mixes", default="shape,one,several")
    ap.add_argument("--draws", type=int, default=4)
    ap.add_argument("--first", type=int, default=100)
    ap.add_argument("--time", action="store_true")
    a = ap.parse_args()
    for gpu in a.gpus.split(","):
        prof = read_pair_profiles(Path("/work/shared/profiles/gavel/throughputs.csv"), gpu=gpu)
        devs = tuple(Device(name=f"gpu:{i}", kind="gpu", memory_mib=16384) for i in range(4))
        for mix in a.mixes.split(","):
            rows = []
            for seed in range(a.first, a.first + a.draws):
                tr = draw(prof, mix, seed, over_time=a.time)
                ex = SimulatedPool(tr, devs, prof).run(share_fixed(1))
                t = time.process_time(); n = 0
                svc = Packing(PackingOptions(together=2))
                def dec(s):
                    global n
                    n += 1
                    return svc.decide(s)
                us = SimulatedPool(tr, devs, prof).run(dec)
                t = time.process_time() - t
                orc = SimulatedPool(tr, devs, prof).run(knowing(Packing(PackingOptions(together=2, optimism=0)).decide, tr, prof))
                # fluid bound with true speeds
                from helios.services.packing import _prices
                F = len(prof.families); B = np.nan_to_num(prof.beside)
                i, j = np.triu_indices(F); ok = (B[i, j] > 0)
                i, j = i[ok], j[ok]; R = np.zeros((len(i), F)); np.add.at(R, (np.arange(len(i)), i), B[i, j]); np.add.at(R, (np.arange(len(i)), j), B[j, i])
                R = np.concatenate([np.eye(F), R]); W = np.zeros(F)
                for x in tr: W[x.family] += x.seconds
                bound = _prices(R, W)[1].sum() / 4
                rows.append((us.makespan_s / ex.makespan_s, bound / ex.makespan_s, us.mean_result_s / ex.mean_result_s, us.pauses, us.starts, us.out_of_memory, n, t / n * 1000, orc.makespan_s / ex.makespan_s, orc.pauses, orc.out_of_memory))
            r = np.array(rows)
            print(gpu, mix, "ours", r[:, 0].mean().round(3), "worst", r[:, 0].max().round(3), "bound", r[:, 1].mean().round(3), "share", ((1 - r[:, 0].mean()) / (1 - r[:, 1].mean())).round(3), "jct", r[:, 2].mean().round(3), "pauses", r[:, 3].mean(), "starts", r[:, 4].mean(), "oom", r[:, 5].mean(), "decisions", r[:, 6].mean(), "ms", r[:, 7].mean().round(2), "| knowing", r[:,8].mean().round(3), r[:,8].max().round(3), "share", ((1 - r[:, 0].mean()) / (1 - r[:, 8].mean())).round(3), r[:,9].mean(), r[:,10].mean(), flush=True)
