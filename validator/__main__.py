"""What a rank's process starts: by `bubblescope validate`, or by torchrun.

`torchrun --nproc-per-node 8 -m validator JOB ...` takes the options of `bubblescope validate`.
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank-of"]:
        from validator.rank import work
        from validator.session import Session

        folder, rank = Path(sys.argv[2]), int(sys.argv[3])
        session = Session.model_validate_json((folder / "session.json").read_text())
        work(session, folder, rank, rank, str(folder / "store"))
    else:
        from simulator.cli import main

        sys.exit(main(["validate", *sys.argv[1:]]))
