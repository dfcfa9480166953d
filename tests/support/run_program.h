// Runs a random program twice: in plain torch on one process with the batches
// of all ranks, and wrapped on every rank.
#pragma once

#include <torch/types.h>

#include <string>
#include <vector>

#include "brigade/comm/communicator.h"
#include "tests/support/random_program.h"

namespace brigade::testing {

// The parameters of the program's module, in the order of the module.
using ProgramValues = std::vector<torch::Tensor>;

// After each step; before the first one at [0].
std::vector<ProgramValues> run_plain(const RandomProgram& program);

// On every rank of `world`, which has program.ranks members. What differs from
// run_plain()'s values, one line each: at most one step is reported.
std::vector<std::string> run_wrapped(
    const RandomProgram& program,
    const std::vector<ProgramValues>& expected,
    const CommunicatorPtr& world);

// Both, with ranks as threads (or what set_rank_runner() says). Empty: the same
// on all ranks. An exception is a line of its own.
std::vector<std::string> differences_of(const RandomProgram& program);

}  // namespace brigade::testing
