#!/usr/bin/env python3
"""When windows of calendars begin, by Python's zoneinfo: another implementation than ours.

    python3 internal/suite/edges/edges.py

writes testdata beside it, from the time zone database of this machine. It takes some
minutes. Days are counted from 1970-01-01.

zones.tar.gz has the database itself, so that a test reads the same. edges.txt.gz has, in lines,

    tz <version of the database>
    week <weekday, 0 is Sunday>: <the first day> <days to the next> ...
    month <day>: <the first day> <days to the next> ...
    zone <name> <other names>: <run> <run> ...

A week's and a month's days are those on which its windows begin. A run is <days>*<seconds>: for so
many days the first instant that is no earlier than the day, by the clocks of the zone, is so many
seconds after the midnight of UTC.
"""

import calendar
import datetime
import gzip
import io
import os
import tarfile
import zoneinfo

EPOCH = datetime.datetime(1970, 1, 1)
FIRST = (datetime.date(1969, 10, 1) - EPOCH.date()).days
LAST = (datetime.date(2101, 3, 31) - EPOCH.date()).days
TARGET = os.path.join(os.path.dirname(__file__), "testdata")
NONE = {"Factory", "localtime", "posixrules"}  # no names of zones


def weeks(weekday):
    """The days that begin a week on weekday."""
    return [d for d in range(FIRST, LAST) if (EPOCH + datetime.timedelta(d)).isoweekday() % 7 == weekday]


def months(day):
    """The days that begin a month on that day, or on the last one of a shorter month."""
    first = EPOCH.date() + datetime.timedelta(FIRST)
    days = []
    for n in range((LAST - FIRST) // 31):
        year, month = divmod(first.year * 12 + first.month - 1 + n, 12)
        last = calendar.monthrange(year, month + 1)[1]
        days.append((datetime.date(year, month + 1, min(day, last)) - EPOCH.date()).days)
    return days


def shown(zone, second):
    """The day that clocks of the zone show at a Unix second."""
    local = datetime.datetime.fromtimestamp(second, zone).replace(tzinfo=None)
    return (local - EPOCH).days


def begin(zone, day):
    """The first second at which clocks of the zone show that day or a later one."""
    midnight = EPOCH + datetime.timedelta(day)
    # Of a midnight that comes twice, fold 0 is the first. Of one that is left out, it is as far
    # behind the change as the clocks would have gone.
    second = day * 86400 - round(zone.utcoffset(midnight.replace(tzinfo=zone, fold=0)).total_seconds())
    if shown(zone, second - 1) < day <= shown(zone, second):
        return second
    early, late = second - 26 * 3600, second + 26 * 3600
    assert shown(zone, early) < day <= shown(zone, late), (zone, day)
    while late - early > 1:
        middle = (early + late) // 2
        if shown(zone, middle) >= day:
            late = middle
        else:
            early = middle
    return late


def runs(zone):
    text, last, times = [], None, 0
    for day in range(FIRST, LAST):
        after = begin(zone, day) - day * 86400
        if after != last:
            if times:
                text.append(f"{times}*{last}")
            last, times = after, 0
        times += 1
    return text + [f"{times}*{last}"]


def steps(days):
    return " ".join(str(d - before) for before, d in zip([0] + days, days))


def source(name):
    for folder in zoneinfo.TZPATH:
        path = os.path.join(folder, name)
        if os.path.isfile(path):
            with open(path, "rb") as f:
                return f.read()
    raise FileNotFoundError(name)


def version():
    for folder in zoneinfo.TZPATH:
        path = os.path.join(folder, "tzdata.zi")
        if os.path.isfile(path):
            with open(path) as f:
                return f.readline().split()[-1]
    return "unknown"


def main():
    names = {}
    for name in sorted(zoneinfo.available_timezones() - NONE):
        names.setdefault(source(name), []).append(name)
    zones = sorted(names.items(), key=lambda item: (item[0][-40:], item[1]))  # like ones side by side
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for data, same in zones:
            file = tarfile.TarInfo(same[0])
            file.size = len(data)
            tar.addfile(file, io.BytesIO(data))
            for other in same[1:]:
                link = tarfile.TarInfo(other)
                link.type, link.linkname = tarfile.LNKTYPE, same[0]
                tar.addfile(link)
    lines = [f"tz {version()}"]
    lines += [f"week {d}: {steps(weeks(d))}" for d in range(7)]
    lines += [f"month {d}: {steps(months(d))}" for d in range(1, 32)]
    lines += [f"zone {' '.join(same)}: {' '.join(runs(zoneinfo.ZoneInfo(same[0])))}" for _, same in zones]
    for name, data in ("zones.tar.gz", raw.getvalue()), ("edges.txt.gz", "\n".join(lines).encode() + b"\n"):
        with open(os.path.join(TARGET, name), "wb") as f:
            f.write(gzip.compress(data, 9, mtime=0))
        print(name, os.path.getsize(os.path.join(TARGET, name)), "bytes")


if __name__ == "__main__":
    main()
