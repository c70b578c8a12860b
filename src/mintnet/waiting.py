"""Threads of one operation that wait for each other sleep, where nobody has chosen otherwise.

By default they spin. That is a little faster on an idle machine; on one that is busy with something
else they take the processor from the very thread they wait for, and a solve of many short
operations takes ten times as long. OpenMP reads the policy when torch is loaded, so that this must
be imported before it, and changes nothing where torch is there already.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
