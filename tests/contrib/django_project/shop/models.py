from django.db import models


class Order(models.Model):
    note = models.CharField(max_length=100, unique=True)
    shipped = models.IntegerField(default=0)
