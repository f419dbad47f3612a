"""The Lua scripts that Redis runs atomically. The clock is always that of Redis."""

from __future__ import annotations

_NOW = "local t = redis.call('TIME'); local now = t[1] + t[2] / 1e6\n"

# A limit is one number: when it is full again (GCRA). ARGV: whether to check, then size, seconds and amount of each.
# Returns the index of the first limit that has less than 1 left (0: none, all are charged), then what each has left.
CHARGE = (
    _NOW
    + """
local left, refused = {}, 0
for i, key in ipairs(KEYS) do
    local most, seconds = tonumber(ARGV[i * 3 - 1]), tonumber(ARGV[i * 3])
    local full = math.max(now, tonumber(redis.call('GET', key) or '0'))
    left[i] = most - (full - now) * most / seconds
    if ARGV[1] == '1' and refused == 0 and left[i] < 1 then refused = i end
end
for i, key in ipairs(KEYS) do
    local most, seconds, amount = tonumber(ARGV[i * 3 - 1]), tonumber(ARGV[i * 3]), tonumber(ARGV[i * 3 + 1])
    if refused == 0 and amount > 0 then
        left[i] = left[i] - amount
        local full = (most - left[i]) * seconds / most
        redis.call('SET', key, string.format('%.17g', now + full), 'PX', math.ceil(full * 1000) + 1000)
    end
    left[i] = string.format('%.17g', left[i])
end
return {refused, unpack(left)}
"""
)

# A run is a hash: owner, front, attempt, request, `next` (the number of the event to come), `ended`.
# Its events are a stream of batches; an entry's id is the number of its first event, plus 1.
OVERTAKEN, UNKNOWN = -2, -1  # what APPEND says of a run

# KEYS: run, events. ARGV: owner, front, attempt, request, lease.
BEGIN = """
local run = redis.call('HMGET', KEYS[1], 'front', 'attempt')
if run[1] then return run[1] == ARGV[2] and run[2] == ARGV[3] and 1 or 0 end
redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'front', ARGV[2], 'attempt', ARGV[3], 'request', ARGV[4],
    'next', 0)
redis.call('EXPIRE', KEYS[1], ARGV[5])
redis.call('DEL', KEYS[2])
return 1
"""
# KEYS: run, events. ARGV: the attempt that was seen, the new front, lease.
TAKE = """
local run = redis.call('HMGET', KEYS[1], 'attempt', 'ended', 'front')
local mine = run[3] == ARGV[2] and tonumber(run[1]) == ARGV[1] + 1  -- the call came twice
if run[2] or run[1] ~= ARGV[1] and not mine then return {} end
redis.call('HSET', KEYS[1], 'front', ARGV[2], 'attempt', ARGV[1] + 1)
redis.call('EXPIRE', KEYS[1], ARGV[3])
redis.call('EXPIRE', KEYS[2], ARGV[3])
return redis.call('HMGET', KEYS[1], 'owner', 'front', 'attempt', 'request')
"""
# KEYS: run, events. ARGV: attempt, how long the events stay. An empty entry at the end wakes those that wait for
# events.
END = """
local run = redis.call('HMGET', KEYS[1], 'attempt', 'ended', 'next')
if run[1] ~= ARGV[1] or run[2] then return 0 end
redis.call('HSET', KEYS[1], 'ended', 1)
redis.call('XADD', KEYS[2], (run[3] + 1) .. '-1', 'lines', '')
redis.call('EXPIRE', KEYS[1], ARGV[2])
redis.call('EXPIRE', KEYS[2], ARGV[2])
return 1
"""
# KEYS: run and events of each. ARGV: front, lease, then attempt, first number, count and lines of each.
# Of each: how many events are there, or OVERTAKEN (by a later attempt, or it has ended), or UNKNOWN.
# Nothing is added when it would leave a gap. A run that is there with an earlier attempt means that Redis lost its
# data, and that a front that does not know that it was overtaken announced the run again.
APPEND = """
local results = {}
for i = 1, #KEYS / 2 do
    local key, events = KEYS[i * 2 - 1], KEYS[i * 2]
    local attempt, first, count = tonumber(ARGV[i * 4 - 1]), tonumber(ARGV[i * 4]), tonumber(ARGV[i * 4 + 1])
    local lines = ARGV[i * 4 + 2]
    local run = redis.call('HMGET', key, 'attempt', 'ended', 'next')
    local number = tonumber(run[3] or '0')
    local told = tonumber(run[1] or '0')
    if told > 0 and told < attempt then
        redis.call('HSET', key, 'attempt', attempt, 'front', ARGV[1])
        if run[2] then  -- by an attempt that was overtaken: its events are written again
            redis.call('HDEL', key, 'ended')
            redis.call('HSET', key, 'next', 0)
            redis.call('DEL', events)
            number = 0
        end
    end
    if told == 0 then
        results[i] = -1
    elseif told > attempt or told == attempt and run[2] then
        results[i] = -2
    else
        if first > number then count = 0 end
        while first < number and count > 0 do  -- these are there already
            lines = string.sub(lines, (string.find(lines, '\\n', 1, true) or #lines) + 1)
            first, count = first + 1, count - 1
        end
        if count > 0 then
            redis.call('XADD', events, (first + 1) .. '-0', 'lines', lines)
            number = first + count
            redis.call('HSET', key, 'next', number)
            redis.call('EXPIRE', events, ARGV[2])
        end
        results[i] = number
    end
end
return results
"""
# KEYS: run, events. ARGV: first number. Returns whether the run has ended, the number of the first line, the lines.
EVENTS = """
local run = redis.call('HMGET', KEYS[1], 'next', 'ended')
if not run[1] then return nil end
local start = redis.call('XREVRANGE', KEYS[2], (ARGV[1] + 1) .. '-0', '-', 'COUNT', 1)
local from = start[1] and start[1][1] or '-'
local lines = {}
for _, entry in ipairs(redis.call('XRANGE', KEYS[2], from, '+')) do
    if entry[2][2] ~= '' then lines[#lines + 1] = entry[2][2] end
end
local number = start[1] and tonumber(string.match(from, '%d+')) - 1 or tonumber(ARGV[1])
return {run[2] and 1 or 0, number, table.concat(lines, '\\n')}
"""
# KEYS: run and events of each. ARGV: front, lease. Returns the places, from 0 on, of those that are unknown.
RENEW = """
local unknown = {}
for i = 1, #KEYS, 2 do
    local run = redis.call('HMGET', KEYS[i], 'front', 'ended')
    if not run[1] then
        unknown[#unknown + 1] = (i - 1) / 2
    elseif run[1] == ARGV[1] and not run[2] then
        redis.call('EXPIRE', KEYS[i], ARGV[2])
        redis.call('EXPIRE', KEYS[i + 1], ARGV[2])
    end
end
return unknown
"""

# KEYS: times and values of a table. ARGV: name, value, seconds.
BEAT = (
    _NOW
    + """
redis.call('ZADD', KEYS[1], string.format('%.17g', now + ARGV[3]), ARGV[1])
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
"""
)
# KEYS: as above. Entries that were not renewed in time are removed.
ALIVE = (
    _NOW
    + """
local gone = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', string.format('%.17g', now))
for _, name in ipairs(gone) do
    redis.call('ZREM', KEYS[1], name)
    redis.call('HDEL', KEYS[2], name)
end
return redis.call('HGETALL', KEYS[2])
"""
)
# KEYS: a value. ARGV: what it was (empty: nothing), what it becomes, milliseconds.
SWAP = """
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return 1
"""
