from tests.live.rig import Rig
def _go(r):
    r.fill()
    a = r.submit("--array=1-8%3")
    r.run("scontrol","update",f"jobid={a}_5","SiteFactor=500")
    r.until(lambda: len(r.lines("sprio","-h","-o","%i %S"))>=2)
    f="JobID:|,ArrayJobID:|,ArrayTaskID:|,SubmitTime:|,RestartCnt:|,UserName:|,Partition:|,TimeLimit:|,MinTime:|,PriorityLong:|,StateCompact:|"
    print("R", r.run("squeue","-r","-h","-a","-t","PD","-O",f))
    print("U", r.run("squeue","-h","-a","-t","PD","-O",f))
    print("AU", r.run("squeue","--array-unique","-h","-a","-t","PD","-O",f, check=False))
    print("S", r.run("sprio","-h","-o","%i %S"))
    print("C", r.run("scontrol","-o","show","job",a))
    rq = r.submit("--requeue", name="filler2")
    run = r.lines("squeue","-h","-t","R","-o","%i")[0]
    r.run("scontrol","update",f"jobid={run}","SiteFactor=1237", check=False)
    b=r.show_job(run)
    import time; time.sleep(2.1)
    print("requeue", r.run("scontrol","requeue",run,check=False))
    r.until(lambda: r.job_state(run)=="PENDING")
    c=r.show_job(run)
    print("submit", b["SubmitTime"],c["SubmitTime"],b["Restarts"],c["Restarts"])
def test_old(rig): _go(rig)
def test_new(newest):
    newest.empty()
    _go(newest)
    newest.empty()
