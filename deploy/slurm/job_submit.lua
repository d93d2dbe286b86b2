--[[
Helios's priority hook: gives a job its place and soft limit at the moment it is submitted.

slurmctld calls this script under its locks, one job at a time. Therefore it only looks the job up in a table that
Helios publishes on the controller's local disk: no network, no program, no change to a job when anything at all is
wrong. Every way through it returns slurm.SUCCESS. See docs/priority-hook.md.

With a job_submit.lua of your own, keep it, and say in it:

    pcall(dofile, "/etc/slurm/helios_hook.lua")               -- this file
    function slurm_job_submit(job_desc, part_list, submit_uid)
        ...
        if helios_hook then helios_hook.submit(job_desc, part_list, submit_uid) end
        return slurm.SUCCESS
    end

It keeps to one global name, helios_hook, and defines Slurm's two functions only where nobody else has.
It runs on Lua 5.1 to 5.4.
]]

local hook = {
    table_path = "/var/lib/helios/hook/table",
    most_rows = 200000,
    most_bytes = 32 * 1024 * 1024,
    log_every_s = 60,
    retry_every_s = 10, -- a damaged table is read again no more often
    skew_s = 300,       -- a table from further in the future has a wrong clock
}

local FORMAT = "helios-hook 1"
local MODULUS = 2147483647
local ENOENT = 2
local LAST_S = 253402300799 -- the end of year 9999

local loaded = {
    header = nil, sites = {}, minutes = {}, users = {},
    published = 0, expires = 0, failed = nil, failed_at = 0,
}
local logged_at = nil

local function complain(why)
    local now = os.time()
    if logged_at == nil or now - logged_at >= hook.log_every_s or now < logged_at then
        logged_at = now
        slurm.log_info("helios_hook: jobs are submitted unchanged: %s", tostring(why))
    end
end

-- A pause file that cannot be read is still there: only its proven absence lets the hook act.
local function exists(path)
    local file, _, errno = io.open(path, "r")
    if file then
        file:close()
    end
    return file ~= nil or errno ~= ENOENT
end

local function is_paused()
    local folder = string.match(hook.table_path, "^(.*)/[^/]*$") or "."
    return exists(folder .. "/PAUSED") or exists(folder .. "/../PAUSED")
end

-- Words of four bytes, low byte first, as digits of a number in base 31, modulo a prime; stays below 2^53, which
-- is what Lua 5.1 counts exactly. helios/slurm/hook_table.py has the same sum.
local function checksum(body)
    local byte, sum = string.byte, 0
    for start = 1, #body, 8 do
        local a, b, c, d, e, f, g, h = byte(body, start, start + 7)
        local low = a + 256 * (b or 0) + 65536 * (c or 0) + 16777216 * (d or 0)
        local high = (e or 0) + 256 * (f or 0) + 65536 * (g or 0) + 16777216 * (h or 0)
        sum = (sum * 961 + low * 31 + high) % MODULUS
    end
    return sum
end

local function header_of(line)
    local format, facts, sum = string.match(line, "^(%S+ %d+) ([%d ]+) (%d+)\n$")
    local generation, published, expires, rows, bytes =
        string.match(facts or "", "^(%d+) (%d+) (%d+) (%d+) (%d+)$")
    if format ~= FORMAT or generation == nil then
        return nil, "the table has no header of the format " .. FORMAT
    end
    for number in string.gmatch(facts, "%d+") do
        if #number > 15 or #sum > 10 then
            return nil, "the table's header has a number that is too large"
        end
    end
    if tonumber(published) > LAST_S or tonumber(expires) > LAST_S then
        return nil, "the table is from a time that no clock has"
    end
    return {
        facts = facts, generation = generation, rows_text = rows,
        published = tonumber(published), expires = tonumber(expires),
        rows = tonumber(rows), bytes = tonumber(bytes), sum = tonumber(sum),
    }
end

local function is_count(word)
    return word == "*" or (#word <= 10 and not string.find(word, "*", 1, true))
end

-- The four kinds of key that are looked up.
local function is_key(user, partition, gpus, limit)
    if user == nil or partition == "*" or not is_count(gpus) or not is_count(limit) then
        return false
    end
    if user == "*" then
        return gpus ~= "*" and limit == "*"
    end
    return gpus ~= "*" or limit == "*"
end

-- A value without Helios's mark is not Helios's.
local function is_understood(site, minute)
    return site and math.abs(site) < 2147483648 and minute < 2147483648
        and (site == 0 or math.abs(site) % 100 == 37) and (minute == 0 or minute % 10 == 7)
end

-- Line by line, and each from its beginning: a pattern that may begin anywhere tries a long line again and again, while
-- slurmctld waits.
local function rows_of(body)
    local sites, minutes, count = {}, {}, 0
    for line in string.gmatch(body, "([^\n]*)\n") do
        local user, partition, gpus, limit, site, minute =
            string.match(line, "^([A-Za-z0-9_.~%%*-]+) ([A-Za-z0-9_.~%%*-]+) ([%d*]+) ([%d*]+) (%-?%d+) (%d+)$")
        site, minute = tonumber(site), tonumber(minute)
        if not is_key(user, partition, gpus, limit) or not is_understood(site, minute) then
            return sites, minutes, -1
        end
        local key = user .. " " .. partition .. " " .. gpus .. " " .. limit
        count = count + 1
        sites[key] = site
        if minute ~= 0 then
            minutes[key] = minute
        end
    end
    return sites, minutes, count
end

local function take_in_rows(file, line, header)
    if header.rows > hook.most_rows or header.bytes > hook.most_bytes then
        return "the table is too large"
    end
    file:seek("set", #line)
    local body = header.bytes > 0 and file:read(header.bytes) or ""
    local last = "end " .. header.generation .. " " .. header.rows_text .. "\n"
    if #body ~= header.bytes or file:read(#last + 1) ~= last then
        return "the table is cut short, or goes on after its end"
    end
    if (checksum(header.facts) * 31 + checksum(body)) % MODULUS ~= header.sum then
        return "the table's checksum is wrong"
    end
    local sites, minutes, count = rows_of(body)
    if count ~= header.rows then
        return "the table has rows that are not understood"
    end
    loaded.sites, loaded.minutes = sites, minutes
    return nil
end

local function take_in(file, line)
    loaded.header, loaded.sites, loaded.minutes, loaded.users = line, {}, {}, {}
    loaded.failed_at = os.time()
    local header, why = header_of(line)
    if header then
        loaded.published, loaded.expires = header.published, header.expires
        why = take_in_rows(file, line, header)
    end
    loaded.failed = why
end

-- Opens the table for every job, but reads on past its first line only if that has changed.
local function refresh()
    local file, why = io.open(hook.table_path, "rb")
    if file == nil then
        loaded.header, loaded.sites, loaded.minutes = nil, {}, {}
        return tostring(why)
    end
    local line = string.match(file:read(256) or "", "^[^\n]*\n") or ""
    local now = os.time()
    local again = loaded.failed and math.abs(now - loaded.failed_at) >= hook.retry_every_s
    if line ~= loaded.header or again then
        local ok, problem = pcall(take_in, file, line)
        if not ok then
            loaded.failed = tostring(problem)
        end
    end
    file:close()
    if loaded.failed then
        return loaded.failed
    end
    if now >= loaded.expires or now < loaded.published - hook.skew_s then
        return "the table has expired, or the clocks differ"
    end
    return nil
end

local function given(value)
    return value ~= nil and value ~= "" and value ~= slurm.NO_VAL
end

-- "gres:gpu:a100:2,gres:gpu:h100:1" (since 23.11 gres/gpu:...) is 3; "gres:gpu" is 1.
local function gpus_in(text)
    local sum = 0
    if not given(text) then
        return sum
    end
    for part in string.gmatch(text, "[^,]+") do
        local what = string.gsub(part, "^gres[:/]", "")
        if what == "gpu" or string.match(what, "^gpu[:=]") then
            sum = sum + (tonumber(string.match(what, "[:=](%d+)$")) or 1)
        end
    end
    return sum
end

local function or_one(count)
    return given(count) and count > 1 and count or 1
end

-- The GPUs of the whole job, or nil where only Slurm can tell.
local function gpus_of(job)
    local whole = gpus_in(job.tres_per_job)
    if whole > 0 then
        return whole
    end
    local each_task = gpus_in(job.tres_per_task)
    if each_task > 0 then
        return each_task * or_one(job.num_tasks)
    end
    local each_node = gpus_in(job.tres_per_node)
    if each_node == 0 and gpus_in(job.tres_per_socket) > 0 then
        return nil
    end
    return each_node * or_one(job.min_nodes)
end

local function partition_of(job, partitions)
    if given(job.partition) then
        local name = string.match(job.partition, "^[^,]+")
        return name, partitions[name]
    end
    for name, partition in pairs(partitions) do
        if partition.flag_default == 1 then
            return name, partition
        end
    end
    return nil, nil
end

-- The minutes Slurm will write down, or nil: none.
local function limit_of(job, partition)
    local limit = job.time_limit
    if not given(limit) and partition then
        limit = given(partition.default_time) and partition.default_time or partition.max_time
    end
    return given(limit) and limit ~= slurm.INFINITE and limit or nil
end

local function escaped(name)
    return (string.gsub(name, "[^A-Za-z0-9_.~-]", function(letter)
        return string.format("%%%02X", string.byte(letter))
    end))
end

-- The user's name as in the table. Slurm asks the system for it each time, which may be slow, so it is remembered
-- until the next table comes.
local function user_of(job)
    local id = job.user_id
    local user = loaded.users[id]
    if user == nil then
        local name = job.user_name
        user = given(name) and escaped(name)
        loaded.users[id] = user
    end
    return user
end

-- Since Lua 5.3 what Slurm hands over would read 60.0.
local function whole_number(number)
    return number and string.format("%d", number)
end

-- From the most specific to the least, as helios/slurm/hook_table.py names them.
local function key_of(job, partitions)
    local name, partition = partition_of(job, partitions)
    if name == nil then
        return nil
    end
    local user, gpus, limit = user_of(job), gpus_of(job), limit_of(job, partition)
    local where, sites = escaped(name), loaded.sites
    gpus, limit = whole_number(gpus), whole_number(limit)
    local function found(who, many, long)
        local key = who .. " " .. where .. " " .. many .. " " .. long
        return sites[key] and key
    end
    return user and gpus and limit and found(user, gpus, limit)
        or user and gpus and found(user, gpus, "*")
        or user and found(user, "*", "*")
        or gpus and found("*", gpus, "*")
        or nil
end

-- Held, with a priority of its own, in a reservation, a component of a heterogeneous job, from scrontab.
local function is_hands_off(job)
    return given(job.priority) or given(job.reservation) or given(job.het_job_offset) or job.cron_job == true
end

-- Only values with Helios's mark are written: they are what its kill switches find again.
local function apply(job, partitions)
    if is_paused() or is_hands_off(job) then
        return
    end
    local why = refresh()
    if why then
        complain(why)
        return
    end
    local key = key_of(job, partitions)
    if key == nil then
        return
    end
    local site, minutes = loaded.sites[key], loaded.minutes[key]
    if math.abs(site) % 100 == 37 and not given(job.site_factor) then
        job.site_factor = site
    end
    -- A minimum above the limit would have the job refused.
    if minutes and minutes % 10 == 7 and not given(job.time_min) and given(job.time_limit)
        and minutes < job.time_limit then
        job.time_min = minutes
    end
end

function hook.submit(job_desc, part_list, submit_uid)
    local ok, why = pcall(apply, job_desc, part_list)
    if not ok then
        pcall(complain, why)
    end
    return slurm.SUCCESS
end

function hook.modify(job_desc, job_rec, part_list, modify_uid)
    return slurm.SUCCESS
end

helios_hook = hook
if rawget(_G, "slurm_job_submit") == nil then
    slurm_job_submit, slurm_job_modify = hook.submit, hook.modify
end

return slurm.SUCCESS
