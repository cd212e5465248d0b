"""The zoo: small networks in the style of Chainer's ImageNet and CIFAR examples."""

import chainer
import chainer.functions as F
import chainer.links as L
from chainer import initializers

from tests.zoo.cases import case, images, itself, labelled, own

CLASSES = 5


class Inception(chainer.Chain):
    """Four branches and a concat, as in GoogLeNet."""

    def __init__(self, in_channels, width):
        super().__init__()
        with self.init_scope():
            self.conv1 = L.Convolution2D(in_channels, width, 1)
            self.proj3 = L.Convolution2D(in_channels, width, 1)
            self.conv3 = L.Convolution2D(width, width + 2, 3, pad=1)
            self.proj5 = L.Convolution2D(in_channels, width, 1)
            self.conv5 = L.Convolution2D(width, width, 5, pad=2)
            self.projp = L.Convolution2D(in_channels, width, 1)

    def forward(self, x):
        out1 = self.conv1(x)
        out3 = self.conv3(F.relu(self.proj3(x)))
        out5 = self.conv5(F.relu(self.proj5(x)))
        pool = self.projp(F.max_pooling_2d(x, 3, stride=1, pad=1))
        return F.relu(F.concat((out1, out3, out5, pool), axis=1))


@case("googlenet_style", labelled(4, 3, 24, 24), own, kept=("loss",))
class GoogLeNetStyle(chainer.Chain):
    """Its own loss, reported, and an auxiliary head that exists in training only."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.conv1 = L.Convolution2D(None, 8, 5, stride=2, pad=2)
            self.conv2 = L.Convolution2D(None, 12, 3, stride=1, pad=1)
            self.inc3a = Inception(12, 4)
            self.inc3b = Inception(18, 6)
            self.inc4a = Inception(26, 4)
            self.loss1_conv = L.Convolution2D(None, 6, 1)
            self.loss1_fc1 = L.Linear(None, 16)
            self.loss1_fc2 = L.Linear(None, CLASSES)
            self.loss3_fc = L.Linear(None, CLASSES)

    def forward(self, x, t):
        h = F.relu(self.conv1(x))
        h = F.local_response_normalization(F.max_pooling_2d(h, 3, stride=2), n=5)
        h = F.relu(self.conv2(h))
        h = self.inc3b(self.inc3a(h))
        if chainer.config.train:
            a = F.average_pooling_2d(h, 5, stride=3)
            a = F.relu(self.loss1_fc1(F.relu(self.loss1_conv(a))))
            loss1 = F.softmax_cross_entropy(self.loss1_fc2(a), t)
        h = self.inc4a(F.max_pooling_2d(h, 3, stride=2))
        h = F.average_pooling_2d(h, 3, stride=1)
        h = self.loss3_fc(F.dropout(h, 0.4))
        loss3 = F.softmax_cross_entropy(h, t)
        accuracy = F.accuracy(h, t)
        if chainer.config.train:
            self.loss = 0.3 * loss1 + loss3
            chainer.report({"loss1": loss1, "loss3": loss3}, self)
        else:
            self.loss = loss3
        chainer.report({"loss": self.loss, "accuracy": accuracy}, self)
        return self.loss


class ConvBN(chainer.Chain):
    def __init__(self, in_channels, out_channels, ksize, pad=0, stride=1):
        super().__init__()
        with self.init_scope():
            self.conv = L.Convolution2D(in_channels, out_channels, ksize, stride=stride, pad=pad, nobias=True)
            self.bn = L.BatchNormalization(out_channels)

    def forward(self, x):
        return F.relu(self.bn(self.conv(x)))


@case("inception_bn", labelled(4, 3, 16, 16), itself)
def inception_bn():
    """Inception with a normalization after each convolution; the concat joins what would all be fused."""

    class Mixed(chainer.Chain):
        def __init__(self, in_channels):
            super().__init__()
            with self.init_scope():
                self.a = ConvBN(in_channels, 4, 1)
                self.b = chainer.Sequential(
                    ConvBN(in_channels, 4, 1), ConvBN(4, 6, (1, 3), (0, 1)), ConvBN(6, 6, (3, 1), (1, 0))
                )
                self.c = ConvBN(in_channels, 5, 1)

        def forward(self, x):
            return F.concat([self.a(x), self.b(x), self.c(F.average_pooling_2d(x, 3, 1, 1))])

    class Net(chainer.Chain):
        def __init__(self):
            super().__init__()
            with self.init_scope():
                self.stem = ConvBN(3, 8, 3, 1, 2)
                self.mixed = chainer.Sequential(Mixed(8), Mixed(15))
                self.chainers = L.InceptionBN(15, 4, 4, 6, 4, 6, "max", 5)
                self.reduction = L.InceptionBN(21, 0, 4, 6, 4, 6, "max", stride=2)
                self.fc = L.Linear(33, CLASSES)

        def forward(self, x):
            h = self.reduction(self.chainers(self.mixed(self.stem(x))))
            return self.fc(F.average_pooling_2d(h, h.shape[2:]))

    return L.Classifier(Net())


class BottleneckA(chainer.Chain):
    def __init__(self, in_size, width, out_size, stride=2, groups=1):
        super().__init__()
        w = initializers.HeNormal()
        with self.init_scope():
            self.conv1 = L.Convolution2D(in_size, width, 1, stride, 0, initialW=w, nobias=True)
            self.bn1 = L.BatchNormalization(width)
            self.conv2 = L.Convolution2D(width, width, 3, 1, 1, initialW=w, nobias=True, groups=groups)
            self.bn2 = L.BatchNormalization(width)
            self.conv3 = L.Convolution2D(width, out_size, 1, 1, 0, initialW=w, nobias=True)
            self.bn3 = L.BatchNormalization(out_size)
            self.conv4 = L.Convolution2D(in_size, out_size, 1, stride, 0, initialW=w, nobias=True)
            self.bn4 = L.BatchNormalization(out_size)

    def forward(self, x):
        h1 = F.relu(self.bn1(self.conv1(x)))
        h1 = F.relu(self.bn2(self.conv2(h1)))
        h1 = self.bn3(self.conv3(h1))
        h2 = self.bn4(self.conv4(x))
        return F.relu(h1 + h2)


class BottleneckB(chainer.Chain):
    def __init__(self, in_size, width, groups=1):
        super().__init__()
        w = initializers.HeNormal()
        with self.init_scope():
            self.conv1 = L.Convolution2D(in_size, width, 1, 1, 0, initialW=w, nobias=True)
            self.bn1 = L.BatchNormalization(width)
            self.conv2 = L.Convolution2D(width, width, 3, 1, 1, initialW=w, nobias=True, groups=groups)
            self.bn2 = L.BatchNormalization(width)
            self.conv3 = L.Convolution2D(width, in_size, 1, 1, 0, initialW=w, nobias=True)
            self.bn3 = L.BatchNormalization(in_size)

    def forward(self, x):
        h = F.relu(self.bn1(self.conv1(x)))
        h = F.relu(self.bn2(self.conv2(h)))
        h = self.bn3(self.conv3(h))
        return F.relu(h + x)


class Block(chainer.ChainList):
    def __init__(self, layer, in_size, width, out_size, stride=2, groups=1):
        super().__init__()
        self.add_link(BottleneckA(in_size, width, out_size, stride, groups))
        for _ in range(layer - 1):
            self.add_link(BottleneckB(out_size, width, groups))

    def forward(self, x):
        for f in self.children():
            x = f(x)
        return x


class ResNet(chainer.Chain):
    """As examples/imagenet/resnet50.py, narrower; its call returns the loss."""

    def __init__(self, groups=1):
        super().__init__()
        with self.init_scope():
            self.conv1 = L.Convolution2D(3, 8, 3, 1, 1, initialW=initializers.HeNormal())
            self.bn1 = L.BatchNormalization(8)
            self.res2 = Block(2, 8, 8, 16, 1, groups)
            self.res3 = Block(2, 16, 8, 24, 2, groups)
            self.fc = L.Linear(24, CLASSES)

    def forward(self, x, t):
        h = self.bn1(self.conv1(x))
        h = F.max_pooling_2d(F.relu(h), 3, stride=2)
        h = self.res2(h)
        h = self.res3(h)
        h = F.average_pooling_2d(h, h.shape[2:], stride=1)
        h = self.fc(h)
        loss = F.softmax_cross_entropy(h, t)
        chainer.report({"loss": loss, "accuracy": F.accuracy(h, t)}, self)
        return loss


case("resnet_example", labelled(4, 3, 16, 16), itself)(ResNet)
case("resnext_example", labelled(4, 3, 16, 16), itself)(lambda: ResNet(groups=4))


@case("densenet", labelled(4, 3, 16, 16), itself)
def densenet():
    """Normalization and ReLU come before the convolution, and what they read is also read by the concat."""

    class Layer(chainer.Chain):
        def __init__(self, in_channels, growth):
            super().__init__()
            with self.init_scope():
                self.bn1 = L.BatchNormalization(in_channels)
                self.conv1 = L.Convolution2D(in_channels, 2 * growth, 1, nobias=True)
                self.bn2 = L.BatchNormalization(2 * growth)
                self.conv2 = L.Convolution2D(2 * growth, growth, 3, pad=1, nobias=True)

        def forward(self, x):
            h = self.conv1(F.relu(self.bn1(x)))
            h = self.conv2(F.relu(self.bn2(h)))
            return F.concat((x, F.dropout(h, 0.2)))

    class Net(chainer.Chain):
        def __init__(self, growth=4):
            super().__init__()
            with self.init_scope():
                self.conv0 = L.Convolution2D(3, 8, 3, pad=1)
                self.block1 = chainer.Sequential(*(Layer(8 + i * growth, growth) for i in range(3)))
                self.bn1 = L.BatchNormalization(20)
                self.conv1 = L.Convolution2D(20, 10, 1, nobias=True)
                self.block2 = chainer.Sequential(*(Layer(10 + i * growth, growth) for i in range(2)))
                self.bn2 = L.BatchNormalization(18)
                self.fc = L.Linear(18, CLASSES)

        def forward(self, x):
            h = self.block1(self.conv0(x))
            h = F.average_pooling_2d(self.conv1(F.relu(self.bn1(h))), 2)
            h = F.relu(self.bn2(self.block2(h)))
            h = F.average_pooling_2d(h, h.shape[2:])
            return self.fc(h)

    return L.Classifier(Net())


@case("vgg_bn", labelled(4, 3, 16, 16), itself)
def vgg_bn():
    """As examples/cifar/models/VGG.py: blocks with a normalization, dropout between them, one inside the head."""

    class ConvBlock(chainer.Chain):
        def __init__(self, channels):
            super().__init__()
            with self.init_scope():
                self.conv = L.Convolution2D(None, channels, 3, pad=1, nobias=True)
                self.bn = L.BatchNormalization(channels)

        def forward(self, x):
            h = self.conv(x)
            h = self.bn(h)
            return F.relu(h)

    class VGG(chainer.Chain):
        def __init__(self):
            super().__init__()
            with self.init_scope():
                self.block1_1 = ConvBlock(8)
                self.block1_2 = ConvBlock(8)
                self.block2_1 = ConvBlock(12)
                self.fc1 = L.Linear(None, 16, nobias=True)
                self.bn_fc1 = L.BatchNormalization(16)
                self.fc2 = L.Linear(None, CLASSES, nobias=True)

        def forward(self, x):
            h = F.dropout(self.block1_1(x), ratio=0.3)
            h = F.max_pooling_2d(self.block1_2(h), ksize=2, stride=2)
            h = F.max_pooling_2d(self.block2_1(h), ksize=2, stride=2)
            h = F.dropout(h, ratio=0.5)
            h = F.relu(self.bn_fc1(self.fc1(h)))
            return self.fc2(F.dropout(h, ratio=0.5))

    return L.Classifier(VGG())


@case("unet", images(2, 3, 16, 16))
class UNet(chainer.Chain):
    """Its output are images: (N, K, H, W)."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.c0 = L.Convolution2D(3, 6, 3, pad=1)
            self.bn0 = L.BatchNormalization(6)
            self.c1 = L.Convolution2D(6, 10, 4, stride=2, pad=1)
            self.bn1 = L.BatchNormalization(10)
            self.c2 = L.Convolution2D(10, 12, 4, stride=2, pad=1)
            self.bn2 = L.BatchNormalization(12)
            self.dc2 = L.Deconvolution2D(12, 10, 4, stride=2, pad=1)
            self.dbn2 = L.BatchNormalization(10)
            self.dc1 = L.Deconvolution2D(20, 6, 4, stride=2, pad=1)
            self.dbn1 = L.BatchNormalization(6)
            self.out = L.Convolution2D(12, 4, 3, pad=1)

    def forward(self, x):
        e0 = F.relu(self.bn0(self.c0(x)))
        e1 = F.relu(self.bn1(self.c1(e0)))
        e2 = F.relu(self.bn2(self.c2(e1)))
        d2 = F.relu(self.dbn2(self.dc2(e2)))
        d1 = F.relu(self.dbn1(self.dc1(F.concat([e1, d2]))))
        return self.out(F.concat([e0, d1]))


@case(
    "unet_pixels", lambda random: (images(2, 3, 16, 16)(random), random.randint(-1, 4, (2, 16, 16)).astype("i")), itself
)
def unet_pixels():
    """A label for each pixel, some of them -1, that is, unknown."""
    return L.Classifier(UNet(), lossfun=F.softmax_cross_entropy, accfun=lambda y, t: F.accuracy(y, t, ignore_label=-1))
