"""Write simulator/accuracy/errors.csv, from which intervals are learnt, and check their coverage.

Run it whenever the cost model changes: `python benchmarks/learn_errors.py`.
"""

from pathlib import Path

import simulator.accuracy
from simulator.accuracy.coverage import coverage_of_rows, coverage_of_tables
from simulator.accuracy.experience import written
from simulator.accuracy.learning import learnt
from simulator.accuracy.predictions import predict
from simulator.accuracy.rows import load_table, table_names
from simulator.kernel import compile_all

compile_all()
known = learnt([one for name in table_names() for one in predict(load_table(name)).predictions])
path = Path(simulator.accuracy.__file__).with_name("errors.csv")
path.write_text(written(known))
print(f"wrote {len(known)} rows")
for title, found in (
    ("each row left out alone", coverage_of_rows(known)),
    ("each table left out whole", coverage_of_tables(known)),
):
    print(
        f"{title}: {found.inside:.1%} of {found.rows} rows inside, median width {found.width:.2f}"
    )
    for name, share in found.by_table.items():
        print(f"  {name:<24}{share:.1%}")
