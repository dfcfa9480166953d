#include "brigade/metrics/tfevents.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <chrono>
#include <cstring>

#include "brigade/base/error.h"

namespace brigade {
namespace {

constexpr std::array<uint32_t, 256> make_table() {
  constexpr uint32_t kPolynomial = 0x82f63b78;
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit)
      value = (value >> 1) ^ ((value & 1) != 0 ? kPolynomial : 0);
    table[i] = value;
  }
  return table;
}

// What a TFRecord stores of a checksum.
uint32_t masked(uint32_t crc) {
  return std::rotr(crc, 15) + 0xa282ead8U;
}

// Little-endian, as protocol buffers and TFRecords are.
template <typename Value>
void append_fixed(Value value, std::string& out) {
  static_assert(std::endian::native == std::endian::little);
  char bytes[sizeof(value)];
  std::memcpy(bytes, &value, sizeof(value));
  out.append(bytes, sizeof(value));
}

void append_varint(uint64_t value, std::string& out) {
  for (; value >= 0x80; value >>= 7)
    out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

enum WireType : uint64_t {
  kVarint = 0,
  kFixed64 = 1,
  kBytes = 2,
  kFixed32 = 5
};

void append_key(uint64_t field, WireType type, std::string& out) {
  append_varint(field << 3 | type, out);
}

void append_bytes(uint64_t field, std::string_view bytes, std::string& out) {
  append_key(field, kBytes, out);
  append_varint(bytes.size(), out);
  out += bytes;
}

// Event: wall_time = 1 (double), step = 2 (int64).
std::string begin_event(double wall_seconds, int64_t step) {
  std::string event;
  append_key(1, kFixed64, event);
  append_fixed(wall_seconds, event);
  append_key(2, kVarint, event);
  append_varint(static_cast<uint64_t>(step), event);
  return event;
}

double wall_now_seconds() {
  return std::chrono::duration<double>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

constexpr std::string_view kNamePrefix = "events.out.tfevents.";

// The largest time in the names of the folder's event files; 0: there is none.
int64_t newest_name(const std::filesystem::path& folder) {
  int64_t newest = 0;
  std::error_code error;  // a folder that is not there is reported by open()
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kNamePrefix))
      continue;
    int64_t time = 0;
    std::from_chars(
        name.data() + kNamePrefix.size(), name.data() + name.size(), time);
    newest = std::max(newest, time);
  }
  return newest;
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  static constexpr auto kTable = make_table();
  uint32_t crc = 0xffffffff;
  for (const char byte : bytes)
    crc = kTable[(crc ^ static_cast<uint8_t>(byte)) & 0xff] ^ (crc >> 8);
  return crc ^ 0xffffffff;
}

std::string tfevent(
    double wall_seconds,
    int64_t step,
    const std::vector<std::pair<std::string, float>>& scalars) {
  // Summary: value = 1; Value: tag = 1, simple_value = 2 (float).
  std::string summary;
  for (const auto& [tag, number] : scalars) {
    std::string value;
    append_bytes(1, tag, value);
    append_key(2, kFixed32, value);
    append_fixed(number, value);
    append_bytes(1, value, summary);
  }
  std::string event = begin_event(wall_seconds, step);
  append_bytes(5, summary, event);
  return event;
}

std::string tfevent_start(double wall_seconds, int64_t first_step) {
  // SessionLog: status = 1 (enum), START = 1.
  std::string session_log;
  append_key(1, kVarint, session_log);
  append_varint(1, session_log);
  std::string event = begin_event(wall_seconds, first_step);
  append_bytes(7, session_log, event);
  return event;
}

TfEventsFile::TfEventsFile(
    const std::filesystem::path& folder,
    const std::string& host,
    int64_t first_step) {
  const double now = wall_now_seconds();
  path_ =
      folder / fmt::format(
                   "{}{:010}.{}.{}.0",
                   kNamePrefix,
                   std::max(static_cast<int64_t>(now), newest_name(folder) + 1),
                   host,
                   ::getpid());
  file_.open(path_, std::ios::binary);
  std::string version = begin_event(now, 0);
  append_bytes(3, "brain.Event:2", version);  // file_version
  write_record(version);
  write_record(tfevent_start(now, first_step));
}

void TfEventsFile::write_record(const std::string& data) {
  std::string length;
  append_fixed(static_cast<uint64_t>(data.size()), length);
  std::string record = length;
  append_fixed(masked(crc32c(length)), record);
  record += data;
  append_fixed(masked(crc32c(data)), record);
  file_.write(record.data(), static_cast<std::streamsize>(record.size()));
  file_.flush();
  if (!file_)
    throw StorageError(
        fmt::format("[metrics] cannot write '{}'", path_.string()));
}

void TfEventsFile::write(const StepMetrics& metrics) {
  const auto scalar = [](double value) { return static_cast<float>(value); };
  std::vector<std::pair<std::string, float>> scalars = {
      {"train/loss", scalar(metrics.loss)},
      {"train/lr", scalar(metrics.lr)},
      {"train/grad_norm", scalar(metrics.grad_norm)},
      {"train/tokens", scalar(static_cast<double>(metrics.tokens))},
      {"speed/tokens_per_second", scalar(metrics.tokens_per_second)},
      {"speed/tokens_per_second_per_device",
       scalar(metrics.tokens_per_second_per_device)},
      {"speed/mfu", scalar(metrics.mfu)},
      {"speed/step_ms", scalar(metrics.step_ms)},
      {"speed/exposed_comm_ms", scalar(metrics.exposed_comm_ms)},
      {"memory/gb", scalar(metrics.memory_gb)}};
  // TRL's names.
  const auto add = [&](const std::string& group,
                       const std::optional<PreferenceMetrics>& of) {
    if (!of)
      return;
    scalars.emplace_back(group + "/rewards/chosen", scalar(of->chosen_reward));
    scalars.emplace_back(
        group + "/rewards/rejected", scalar(of->rejected_reward));
    scalars.emplace_back(group + "/rewards/margins", scalar(of->margin()));
    scalars.emplace_back(group + "/rewards/accuracies", scalar(of->accuracy));
    scalars.emplace_back(group + "/logps/chosen", scalar(of->chosen_log_prob));
    scalars.emplace_back(
        group + "/logps/rejected", scalar(of->rejected_log_prob));
  };
  add("train", metrics.preference);
  add("eval", metrics.eval_preference);
  if (metrics.eval_loss)
    scalars.emplace_back("eval/loss", scalar(*metrics.eval_loss));
  for (const auto& [part, loss] : metrics.part_eval_losses)
    scalars.emplace_back("eval/loss " + part, scalar(loss));
  if (!metrics.experts.empty()) {
    const WorstExpertUse worst = worst_of(metrics.experts);
    scalars.emplace_back("experts/max_over_mean", scalar(worst.max_over_mean));
    scalars.emplace_back("experts/entropy", scalar(worst.entropy));
    scalars.emplace_back(
        "experts/dead", scalar(static_cast<double>(worst.dead)));
    scalars.emplace_back("experts/router_norm", scalar(worst.router_norm));
    scalars.emplace_back(
        "experts/dropped", scalar(static_cast<double>(worst.dropped)));
  }
  write_record(tfevent(wall_now_seconds(), metrics.step, scalars));
}

}  // namespace brigade
