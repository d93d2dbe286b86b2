import json,sys
from pathlib import Path
for f in Path("mutants").rglob("*.meta"):
    d=json.loads(f.read_text())
    for k,v in d.get("exit_code_by_key",{}).items():
        if v==0: print(k)
