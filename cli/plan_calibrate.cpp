// brigade plan --calibrate: measures the present machine, writes its file.
#include <fmt/format.h>

#include "brigade/base/readable.h"
#include "brigade/calibrate/measure.h"
#include "brigade/files/file.h"
#include "brigade/files/output_path.h"
#include "cli/options.h"
#include "cli/plan.h"
#include "cli/standard_streams.h"

namespace brigade::cli {
namespace {

void print_rates(
    const char* dtype,
    const std::vector<machine::ProductRate>& rates) {
  fmt::print("{} products, by smallest dimension:", dtype);
  for (const machine::ProductRate& rate : rates)
    fmt::print("  {}: {:.1f}", rate.size, rate.flops_per_s / 1e9);
  fmt::print("  GFLOP/s\n");
}

void print_measured(
    const machine::Measurements& measured,
    const machine::Machine& machine) {
  print_rates("fp32", measured.fp32_products);
  print_rates("bf16", measured.bf16_products);
  fmt::print(
      "attention {:.1f} GFLOP/s; memory: optimizer {:.1f} GB/s, elementwise "
      "{:.1f} GB/s, loss {:.1f} GB/s; {:.2f} ns per element of a weight, "
      "{:.1f} us per op; {} per process\n",
      measured.attention_flops_per_s / 1e9,
      measured.memory_bytes_per_s / 1e9,
      measured.elementwise_bytes_per_s / 1e9,
      measured.logits_bytes_per_s / 1e9,
      measured.weight_element_s * 1e9,
      measured.kernel_gap_s * 1e6,
      readable_bytes(static_cast<double>(measured.reserved_bytes)));
  for (const machine::AllReduceSample& sample : measured.all_reduces)
    fmt::print(
        "all-reduce of {} bytes among {}: {:.0f} us\n",
        sample.bytes,
        sample.ranks,
        sample.seconds * 1e6);
  if (measured.ranks > 1)
    fmt::print(
        "link: {:.2f} GB/s, {:.0f} us; computation beside it loses {:.0f} % of "
        "its time\n",
        machine.intra.bytes_per_s / 1e9,
        machine.intra.latency_s * 1e6,
        100 * machine.contention.value_or(0));
}

}  // namespace

void calibrate(const PlanArguments& arguments) {
  check_writable(arguments.machine_out);
  const Launch launch = read_launch(arguments.nproc);
  if (launch.is_supervisor)
    return supervise_self(launch);
  share_out_threads(launch.environment, std::nullopt);
  const machine::Measurements measured = measure_machine(launch.environment);
  if (launch.environment.rank != 0)
    return;
  const machine::Machine machine = machine::machine_of(measured, {});
  write_text_file(
      arguments.machine_out, machine::to_json(machine).dump(2) + "\n");
  print_measured(measured, machine);
  constexpr double kBusy = 0.05;
  if (measured.taken_by_others > kBusy)
    note(
        "warning: [plan] other programs had this rank's CPU for {:.0f} % of "
        "the "
        "time; measure again when the machine is quiet\n",
        100 * measured.taken_by_others);
  fmt::print("wrote {}\n", arguments.machine_out);
}

}  // namespace brigade::cli
