// Names the ranks of a run that compute longer than their peers
// (train/stragglers.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "brigade/comm/process_mesh.h"
#include "brigade/train/stragglers.h"

namespace brigade {

class StragglerWatch {
 public:
  // `mesh` must outlive it.
  explicit StragglerWatch(const ProcessMesh& mesh);

  // After each step; collective, once in StragglerDetector::kSteps steps.
  // `busy_seconds`: of this rank, waits for others left out. Returns a line for
  // each rank that is flagged now, the same on all ranks.
  std::vector<std::string> add_step(int64_t step, double busy_seconds);

 private:
  Communicator& world_;
  StragglerDetector detector_;
  std::vector<double> busy_seconds_;  // of the steps since the last look
};

}  // namespace brigade
