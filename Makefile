# The commands of the README, nothing else.
RELEASE := build/release

.PHONY: help quickstart build space config-docs deb wheel portable test test-ecosystem test-faults test-layouts test-library test-slurm soak bench bench-links lint docs fuzz clean

help:
	@echo 'make quickstart    install, build, train a small Llama on two processes, generate text'
	@echo 'make test          install, build, run the whole test suite'
	@echo 'make build         install, build $(RELEASE)/brigade, tests, benchmarks, examples'
	@echo 'make config-docs   write the keys of the config into docs/config.md'
	@echo 'make deb           install, build, make Debian packages in $(RELEASE)'
	@echo 'make wheel         build/wheels/brigade-*.whl for the PyTorch in BRIGADE_TORCH (docs/install.md)'
	@echo 'make portable      build/brigade-portable-*.tar.gz for it: runs where nothing is installed'
	@echo 'make test-layouts  every layout of up to 8 ranks against one rank (an hour and a quarter on 2 cores)'
	@echo 'make test-ecosystem  files against transformers, tokenizers, safetensors and TensorBoard'
	@echo 'make test-library  the library alone: also under TSan, and on libtorch 2.x where there is one'
	@echo 'make test-slurm    training under a Slurm of four nodes in network namespaces, as root'
	@echo 'make soak          ten minutes of training under kills, stops and damage (SOAK_SECONDS=600)'
	@echo 'make test-faults   kills, full disks, damaged files: what a run must survive'
	@echo 'make bench         run the benchmarks'
	@echo 'make bench-links   training over links of 1 Gbit/s and 100 Mbit/s, as root'
	@echo 'make lint          format, includes, documents, clang-tidy on what changed'
	@echo 'make docs          the documentation and the API reference: build/docs/index.html'
	@echo 'make fuzz          fuzz the readers of files (FUZZ_SECONDS=30)'
	@echo 'make clean         remove build/'

quickstart:
	@scripts/quickstart.sh

build:
	@scripts/install_dependencies.sh build
	@$(MAKE) --no-print-directory $(RELEASE)/build.ninja
	@cmake --build $(RELEASE)

# The list of keys is the end of the page.
config-docs: build
	@sed -i '/^## Keys$$/q' docs/config.md
	@(echo; $(RELEASE)/brigade train --help-config=markdown) >> docs/config.md

deb: build
	@scripts/install_dependencies.sh deb
	@cd $(RELEASE) && cpack

wheel:
	@scripts/build_wheel.sh

portable:
	@scripts/build_portable.sh

build test test-faults test-layouts test-library test-slurm soak bench-links: space
space:
	@scripts/check_space.sh $(RELEASE) 3000

# Ninja itself runs CMake again when a CMakeLists.txt has changed.
$(RELEASE)/build.ninja: CMakePresets.json
	@cmake --preset release
	@touch $@

test:
	@scripts/install_dependencies.sh build test
	@$(MAKE) --no-print-directory build
	@scripts/run_tests.sh $(RELEASE)

test-ecosystem: build
	@scripts/test_ecosystem.sh $(RELEASE) || [ $$? -eq 77 ]

test-library:
	@scripts/install_dependencies.sh build test
	@scripts/test_library.sh

test-slurm:
	@scripts/install_dependencies.sh build slurm
	@$(MAKE) --no-print-directory $(RELEASE)/build.ninja
	@cmake --build $(RELEASE) --target brigade_cli
	@scripts/slurm_cluster.sh --test

test-faults:
	@scripts/install_dependencies.sh build test
	@$(MAKE) --no-print-directory $(RELEASE)/build.ninja
	@cmake --build $(RELEASE) --target test_faults
	@cmake --build $(RELEASE) --target brigade_cli
	@BRIGADE_FAULT_SEEDS=20 BRIGADE_LONG_TESTS=1 scripts/run_tests.sh $(RELEASE) -R '^faults'
	@cmake --build $(RELEASE) --target test_cli
	@BRIGADE_LONG_TESTS=1 $(RELEASE)/tests/test_cli --gtest_filter='PlanTest.Calibrates*' --gtest_brief=1
	@scripts/network_faults.py $(RELEASE) || [ $$? -eq 77 ]
	@cmake --build $(RELEASE) --target test_train
	@BRIGADE_ALL_LAYOUTS=9 $(RELEASE)/tests/test_train --gtest_filter='*CheckpointLayouts*' --gtest_brief=1

soak:
	@scripts/install_dependencies.sh build
	@$(MAKE) --no-print-directory $(RELEASE)/build.ninja
	@cmake --build $(RELEASE) --target brigade_cli
	@scripts/soak.py $(RELEASE) $(or $(SOAK_SECONDS),600)

test-layouts:
	@scripts/install_dependencies.sh build test
	@$(MAKE) --no-print-directory $(RELEASE)/build.ninja
	@cmake --build $(RELEASE) --target test_layouts
	@scripts/test_layouts.sh $(RELEASE)

bench: build
	@scripts/run_bench.sh $(RELEASE)

bench-links:
	@scripts/install_dependencies.sh build test
	@$(MAKE) --no-print-directory $(RELEASE)/build.ninja
	@cmake --build $(RELEASE) --target bench_links
	@$(RELEASE)/bench_links

# clang-tidy reads how each source is compiled, which a unity build hides.
lint:
	@scripts/install_dependencies.sh build lint
	@cmake --preset dev >/dev/null
	@scripts/lint.sh build/dev

docs:
	@scripts/install_dependencies.sh docs
	@scripts/make_docs.py build/docs

fuzz:
	@scripts/install_dependencies.sh build lint
	@FUZZ_SECONDS=$(or $(FUZZ_SECONDS),30) scripts/fuzz.sh

clean:
	rm -rf build
