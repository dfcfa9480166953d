// What `brigade plan --calibrate` measured, in a machine file: rates of
// products by size, and collectives by bytes.
//
// PURE.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "brigade/planner/machine.h"

namespace brigade::planner {

// "bf16_rates": [[64, 1e11], [1024, 3e11]]: smallest dimension and FLOP/s.
std::string rates_key(size_t dtype);

// `device` is the file's object of that name. Problems as parse_machine().
void read_rates(
    const nlohmann::json& device,
    const std::string& pointer,
    Machine& machine,
    std::vector<std::string>& problems);
void write_rates(const Machine& machine, nlohmann::json& file);

// "collectives": [["all_reduce", 2, 65536, 0.0005]]: name, ranks, bytes,
// seconds.
void read_collectives(
    const nlohmann::json& file,
    const std::string& pointer,
    Machine& machine,
    std::vector<std::string>& problems);
void write_collectives(const Machine& machine, nlohmann::json& file);

}  // namespace brigade::planner
