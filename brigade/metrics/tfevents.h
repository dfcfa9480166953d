// Scalars as TensorBoard reads them: events.out.tfevents.* files, each a
// sequence of TFRecords that hold Event messages of protocol buffers
// (tensorflow/core/util/event.proto; tensorflow/core/lib/io/record_writer.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "brigade/metrics/metrics.h"

namespace brigade {

// CRC-32C (Castagnoli polynomial, reflected) of the bytes.
uint32_t crc32c(std::string_view bytes);

// One Event with a summary of scalars, as bytes of a protocol buffer.
std::string tfevent(
    double wall_seconds,
    int64_t step,
    const std::vector<std::pair<std::string, float>>& scalars);

// One Event with a SessionLog START: what was written before of `first_step`
// and later steps is void.
std::string tfevent_start(double wall_seconds, int64_t first_step);

class TfEventsFile {
 public:
  // Makes a new file in the folder, named after time, host and process, as
  // TensorBoard expects: it reads a folder's files in the order of their names,
  // so this one's comes after those that are there. It begins with a
  // SessionLog START of `first_step`: readers drop what earlier files of the
  // folder say of that step and later ones. Throws StorageError when it cannot
  // be written.
  TfEventsFile(
      const std::filesystem::path& folder,
      const std::string& host,
      int64_t first_step);
  // Complete on disk after each call. Throws StorageError.
  void write(const StepMetrics& metrics);

  const std::filesystem::path& path() const { return path_; }

 private:
  void write_record(const std::string& data);

  std::filesystem::path path_;
  std::ofstream file_;
};

}  // namespace brigade
