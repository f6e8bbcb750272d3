// SPDX-License-Identifier: Apache-2.0
/// Networks have the numbers of parameters that were published for them, and each learns from a step.
#include "learning/models.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "learning/model_names.hpp"

namespace train {
namespace {

constexpr ImageShape kGrey{1, 28, 28, 10}, kCifar10{3, 32, 32, 10}, kImageNet{3, 224, 224, 1000};

std::int64_t parameters(Network& network) {
  std::int64_t total = 0;
  for (const auto& parameter : network.parameters()) total += parameter.numel();
  return total;
}

TEST(Models, HaveTheParametersThatWerePublished) {
  struct Published {
    const char* model;
    ImageShape shape;
    std::int64_t parameters;
  };
  for (
      const auto& [model, shape, count] : std::vector<Published>{
          {"mlp:hidden=300-100", kGrey, 266'610},  // LeNet-300-100, LeCun et al. 1998
          {"lenet", kGrey, 431'080},               // Caffe's LeNet
          {"alexnet", kImageNet, 61'100'840},      // torchvision, as all of ImageNet below
          {"resnet18", kImageNet, 11'689'512},
          {"resnet34", kImageNet, 21'797'672},
          {"resnet50", kImageNet, 25'557'032},
          {"resnet152", kImageNet, 60'192'808},
          // VGGs with batch normalisation, of torchvision, with the 530,442 parameters of a classifier of
          // 512, 512 and 10 in place of the 123,642,856 of their own.
          {"vgg11", kCifar10, 132'868'840 - 123'642'856 + 530'442},
          {"vgg13", kCifar10, 133'053'736 - 123'642'856 + 530'442},
          {"vgg16", kCifar10, 138'365'992 - 123'642'856 + 530'442},
          {"vgg19", kCifar10, 143'678'248 - 123'642'856 + 530'442},
          {"densenet-40-12", kCifar10, 1'019'722},    // 1.0 M in arXiv 1608.06993
          {"densenet-bc-100-12", kCifar10, 769'162},  // .8 M there
          // 21.28 M: torchvision's ResNet-34, whose groups' parameters are as many as its batches',
          // with one channel in place of three before 7 x 7 x 64 and 10 classes in place of 1,000.
          {"ecl-resnet32", kGrey, 21'797'672 - 2 * 7 * 7 * 64 - 990 * 513}}) {
    EXPECT_EQ(parameters(*make_network(model, "", shape)), count) << model;
  }
  // .27 M, .46 M and 1.7 M in arXiv 1512.03385, without the 2,752 of shortcuts by convolution.
  EXPECT_EQ(parameters(*make_network("resnet20", "", kCifar10)), 269'722 + 2'752);
  EXPECT_EQ(parameters(*make_network("resnet32", "", kCifar10)), 464'154 + 2'752);
  EXPECT_EQ(parameters(*make_network("resnet110", "", kCifar10)), 1'727'962 + 2'752);
}

/// A step along the gradient of a small batch, so short that it should take a thousandth off the
/// loss, takes that off within a twentieth, with the same dropout before and after; every layer has
/// a gradient. Images of 28 x 28 pixels pass through all layers.
void learns(const std::string& model, const std::string& norm) {
  SCOPED_TRACE(model + " " + norm);
  torch::manual_seed(1);
  ImageShape shape{1, 28, 28, 13};
  const auto network = make_network(model, norm, shape);
  Batch batch;
  for (std::size_t k = 0; k < 2 * shape.pixels(); ++k)
    batch.pixels.push_back(static_cast<float>(k % 11) / 11 - 0.5F);
  batch.targets = {12, 3};
  network->train();
  const auto loss = [&] {
    torch::manual_seed(2);
    return network->loss(batch, torch::kCPU).loss;
  };
  const auto before = loss();
  before.backward();
  double squares = 0;
  for (const auto& item : network->named_parameters()) {
    ASSERT_TRUE(item.value().grad().defined()) << item.key();
    squares += item.value().grad().square().sum().item<double>();
  }
  const auto expected = 1e-3 * before.item<double>();
  for (auto& parameter : network->parameters())
    parameter.data().sub_(expected / squares * parameter.grad());
  EXPECT_NEAR(before.item<double>() - loss().item<double>(), expected, 0.05 * expected);
}

TEST(Models, LearnFromAStep) {
  for (const char* model : {"mlp:hidden=20-30", "alexnet", "resnet110", "densenet-40-12"})
    learns(model, "");
  learns("vgg11", "group:16");
  learns("vgg19", "group:16");
  learns("resnet20", "group:4");
  learns("densenet-bc-100-12", "group:6");
}

TEST(Models, NormalisationIsOverGroupsOrTheBatch) {
  EXPECT_EQ(make_network("resnet20", "group:8", kGrey)->buffers().size(), 0U);
  EXPECT_EQ(make_network("ecl-resnet32", "", kGrey)->buffers().size(), 0U);
  EXPECT_GT(make_network("resnet32", "batch", kGrey)->buffers().size(), 0U);
  try {
    (void)make_network("densenet-40-12", "group:32", kGrey);
    FAIL();
  } catch (const std::runtime_error& e) {
    EXPECT_NE(std::string(e.what()).find("do not divide the 16 channels"), std::string::npos);
  }
}

TEST(Models, NamesAndKeysThatAreWrongAreNamed) {
  const auto error_of = [](const std::string& model, const std::string& norm) -> std::string {
    try {
      (void)NormSpec::parse(norm, ModelSpec::parse(model));
    } catch (const std::runtime_error& e) {
      return e.what();
    }
    return "";
  };
  for (const auto& [model, norm, part] : std::vector<std::array<std::string, 3>>{
           {"resnet21", "", "there is no model 'resnet21'; there are logistic, mlp, "},
           {"lenet:hidden=3", "", "lenet takes no keys"},
           {"mlp:width=3", "", "mlp takes hidden, as in mlp:hidden=300-100"},
           {"mlp:hidden=", "", "hidden is ''"},
           {"mlp:hidden=20-", "", "hidden is ''"},
           {"mlp:hidden=20-0", "", "hidden is '0', it has to be whole numbers from 1 to 65536"},
           {"lenet", "batch", "lenet has no normalisation"},
           {"vgg11", "group:0", "'group:0' is neither batch nor group:N"},
           {"vgg11", "layer", "'layer' is neither batch nor group:N"}}) {
    EXPECT_NE(error_of(model, norm).find(part), std::string::npos) << error_of(model, norm);
  }
  EXPECT_EQ(error_of("mlp", ""), "");
  EXPECT_EQ(ModelSpec::parse("mlp:hidden=7-8").hidden, (std::vector<std::int64_t>{7, 8}));
  EXPECT_EQ(NormSpec::parse("", ModelSpec::parse("ecl-resnet32")).channels_a_group, 32);
}

}  // namespace
}  // namespace train
