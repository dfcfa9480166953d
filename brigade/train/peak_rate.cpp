#include "brigade/train/peak_rate.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "brigade/base/error.h"
#include "brigade/comm/device_stream.h"
#include "brigade/comm/gpus.h"
#include "brigade/config/model_layout.h"
#include "brigade/files/file.h"
#include "brigade/json/parse.h"
#include "brigade/metrics/clock.h"
#include "brigade/model_spec/active_parameters.h"
#include "brigade/ops/linear.h"

namespace brigade {
namespace {

// The first products run on cold memory and a slow clock, and any may be
// interrupted: the best of all that fit into a quarter of a second.
double measure(const torch::TensorOptions& options) {
  const torch::NoGradGuard no_grad;
  constexpr int64_t kLeastNs = 250'000'000;
  constexpr int kLeastRuns = 12;
  // A GPU needs more than one to be busy, and is waited for.
  const bool is_queued = is_asynchronous(options.device());
  const int64_t size = is_queued ? 8192 : 1024;
  const int products = is_queued ? 8 : 1;
  const auto n = static_cast<double>(size);
  const auto a = torch::ones({size, size}, options);
  const auto b = torch::ones({size, size}, options);
  const int64_t start = steady_now_ns();
  double best = 0;
  for (int run = 0; run < kLeastRuns || steady_now_ns() - start < kLeastNs;
       ++run) {
    const int64_t begin = steady_now_ns();
    for (int product = 0; product < products; ++product)
      const auto c = ops::linear(a, b);
    StreamMark::of_current_stream(options.device()).wait_on_host();
    const double seconds = static_cast<double>(steady_now_ns() - begin) / 1e9;
    best = std::max(best, products * 2.0 * n * n * n / seconds);
  }
  return best;
}

std::string processor_name() {
  const std::string name = value_in("/proc/cpuinfo", "model name");
  return name.empty() ? "unknown" : name;
}

// The file's object, empty where there is none that can be read.
nlohmann::json read_known(const std::filesystem::path& path) {
  const auto none = nlohmann::json::object();
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error))
    return none;
  try {
    auto known = parse_json_or_nothing(read_text_file(path));
    return known && known->is_object() ? *known : none;
  } catch (const Error&) {
    return none;  // another user's
  }
}

// A rate that a machine can have, where the file has one.
std::optional<double> known_rate(
    const nlohmann::json& known,
    const std::string& key) {
  if (!known.contains(key) || !known[key].is_number())
    return std::nullopt;
  const auto rate = known[key].get<double>();
  return rate > 0 && rate < 1e18 ? std::optional(rate) : std::nullopt;
}

}  // namespace

double peak_flops(
    const torch::TensorOptions& options,
    int local_ranks,
    const PeakRateCache& cache) {
  if (cache.directory.empty())
    return measure(options);
  const bool is_gpu = options.device().is_cuda();
  const std::string key = fmt::format(
      "{}, {} threads, {} ranks, {}",
      is_gpu ? gpu_name(options.device()) : processor_name(),
      is_gpu ? 0 : at::get_num_threads(),
      local_ranks,
      c10::toString(c10::typeMetaToScalarType(options.dtype())));
  const auto path = cache.directory / "peak_rate.json";
  nlohmann::json known = read_known(path);
  if (const auto rate = known_rate(known, key))
    return *rate;
  const double rate = measure(options);
  if (cache.access == PeakRateCache::Access::kRead)
    return rate;
  known[key] = rate;
  try {
    std::filesystem::create_directories(cache.directory);
    write_text_file(path, known.dump(2));
  } catch (const std::exception&) {
    // A cache that cannot be written costs the next run a quarter of a second.
  }
  return rate;
}

double flops_per_token(
    double parameters,
    int64_t num_layers,
    int64_t attention_width,
    int64_t seq_length) {
  return 6 * parameters + 12.0 * static_cast<double>(num_layers) *
                              static_cast<double>(attention_width) *
                              static_cast<double>(seq_length);
}

double flops_per_token(const DecoderConfig& decoder, int64_t seq_length) {
  return flops_per_token(
      static_cast<double>(active_parameter_count(decoder)),
      decoder.num_hidden_layers,
      decoder.num_attention_heads * decoder.head_dim,
      seq_length);
}

double flops_per_token(const TrainConfig& config) {
  const DecoderConfig& decoder = model_of(config);
  const double flops = flops_per_token(decoder, config.training.seq_length);
  return config.adapter.is_used()
             ? flops - 2 * static_cast<double>(active_parameter_count(decoder))
             : flops;
}

double flops_per_choice(const TrainConfig& config) {
  const DecoderConfig& decoder = model_of(config);
  if (!decoder.experts)
    return 0;
  const double parameters =
      3.0 * static_cast<double>(decoder.hidden_size * decoder.experts->width);
  return (config.adapter.is_used() ? 4 : 6) * parameters;
}

}  // namespace brigade
