#include "brigade/files/replace_directory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "brigade/base/error.h"
#include "brigade/files/file.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;

void rename_or_throw(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) == 0)
    return;
  throw StorageError(fmt::format(
      "[file] cannot rename '{}' to '{}': {}",
      from.string(),
      to.string(),
      std::strerror(errno)));
}

// A leftover of an old directory is harmless: its name marks it as one.
void remove_quietly(const fs::path& path) {
  std::error_code ignored;
  fs::remove_all(path, ignored);
}

// False: this file system cannot exchange names.
bool exchange(const fs::path& one, const fs::path& other) {
  if (::renameat2(
          AT_FDCWD, one.c_str(), AT_FDCWD, other.c_str(), RENAME_EXCHANGE) == 0)
    return true;
  if (errno == EINVAL || errno == ENOSYS || errno == ENOTSUP)
    return false;
  throw StorageError(fmt::format(
      "[file] cannot exchange '{}' and '{}': {}",
      one.string(),
      other.string(),
      std::strerror(errno)));
}

}  // namespace

void replace_directory(const fs::path& source, const fs::path& target) {
  if (!fs::exists(fs::symlink_status(target))) {
    rename_or_throw(source, target);
    sync_directory(target.parent_path());
    return;
  }
  if (exchange(source, target)) {
    sync_directory(target.parent_path());
    remove_quietly(source);
    return;
  }
  const fs::path old = with_suffix(target, ".old");
  remove_quietly(old);
  rename_or_throw(target, old);
  try {
    rename_or_throw(source, target);
  } catch (const StorageError&) {
    rename_or_throw(old, target);
    throw;
  }
  sync_directory(target.parent_path());
  remove_quietly(old);
}

void finish_replacing(const fs::path& target) {
  const fs::path old = with_suffix(target, ".old");
  if (!fs::exists(old))
    return;
  if (fs::exists(target)) {
    remove_quietly(old);
    return;
  }
  rename_or_throw(old, target);
  sync_directory(target.parent_path());
}

FolderUnderConstruction::FolderUnderConstruction(
    fs::path out,
    const char* module)
    : out_(std::move(out)),
      module_(module),
      path_(fmt::format("{}.tmp-{}", out_.string(), ::getpid())) {
  std::error_code error;
  fs::remove_all(path_, error);
  fs::create_directories(path_, error);
  check(error);
}

FolderUnderConstruction::~FolderUnderConstruction() {
  remove_quietly(path_);
}

void FolderUnderConstruction::copy(
    const fs::path& file,
    const std::string& name) const {
  std::error_code error;
  const fs::path folder = (path_ / name).parent_path();
  fs::create_directories(folder, error);
  fs::copy_file(file, path_ / name, error);
  check(error);
  if (folder != path_)  // which commit() syncs
    sync_directory(folder);
}

void FolderUnderConstruction::commit() const {
  sync_directory(path_);
  std::error_code error;
  fs::rename(path_, out_, error);
  check(error);
  sync_directory(out_.parent_path());
}

void FolderUnderConstruction::check(const std::error_code& error) const {
  if (error)
    throw StorageError(fmt::format(
        "[{}] cannot write '{}': {}", module_, out_.string(), error.message()));
}

}  // namespace brigade
